"""Atomic writes, checked reads, and a cache by content."""
