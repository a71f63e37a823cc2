"""Level 0: types, errors, options and logging. Imports nothing of ours."""
