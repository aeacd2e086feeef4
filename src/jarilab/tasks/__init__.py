"""Tasks, one a file."""
