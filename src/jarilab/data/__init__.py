"""Readers of datasets: text, images, captions."""
