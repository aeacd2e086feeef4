"""Encodings whose scores or values depend on content and position together."""
