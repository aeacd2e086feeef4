"""Record every attention call of a model on a tape."""
