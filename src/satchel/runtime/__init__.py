"""Level 3: plans and the threads that run them. Knows no graph and no model."""
