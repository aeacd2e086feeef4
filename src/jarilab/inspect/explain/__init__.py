"""One head taken apart, step by step."""
