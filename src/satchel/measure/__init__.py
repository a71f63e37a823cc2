"""Level 7: measuring: accuracy against a reference, speed against the machine's limits."""
