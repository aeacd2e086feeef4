"""A run: what decides it, its folder, its checkpoints."""
