"""Level 8: the command line. Arguments and printing; what a program could miss is elsewhere."""
