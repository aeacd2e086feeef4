"""Training by several processes."""
