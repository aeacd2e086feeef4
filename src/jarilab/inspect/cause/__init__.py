"""Which parts of a model an answer depends on: forwards with replaced parts, and what they change."""
