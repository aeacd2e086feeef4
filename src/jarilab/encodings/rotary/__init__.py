"""Encodings that rotate queries and keys."""
