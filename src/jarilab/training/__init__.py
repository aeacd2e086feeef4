"""The training loop, its state, its checkpoints and its evaluation."""
