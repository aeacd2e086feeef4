"""Attention in units of a field: words in seconds, windows and patches in an image."""
