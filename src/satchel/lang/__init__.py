"""The kernel language: trace, intermediate form, ops with meanings, rules a target, printers to
LLVM and numpy.
"""
