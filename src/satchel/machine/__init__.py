"""Level 1: what this computer is: instructions, cores, caches, memory; fake machines for tests."""
