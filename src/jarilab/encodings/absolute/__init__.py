"""Encodings that add a vector to each token."""
