"""Linear operators: one per file."""
