"""Captions and scenes that show what they say."""
