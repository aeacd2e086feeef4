"""Forwards with edits, and what the edits change."""
