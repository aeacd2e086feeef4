"""Encodings that add a bias to the scores."""
