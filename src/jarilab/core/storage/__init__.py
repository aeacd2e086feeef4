"""What is written to disk: whole files or none, and a cache by content."""
