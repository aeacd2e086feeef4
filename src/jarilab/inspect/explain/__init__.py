"""Walks, score parts and softmax statistics of one head."""
