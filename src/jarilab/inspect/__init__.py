"""Looking inside: capture, measures, the walk through one head."""
