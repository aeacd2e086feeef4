"""The training loop and what a run keeps."""
