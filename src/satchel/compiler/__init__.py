"""Level 5: from a graph to a plan: passes that fuse and place, lowering, memory planning, and the
model that runs it all.
"""
