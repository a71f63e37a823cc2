"""Level 6: sequences that share the steps of one model, from prompt to text."""
