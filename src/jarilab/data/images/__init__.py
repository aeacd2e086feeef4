"""Reading images, labelled and annotated datasets, augmentation, drawing."""

HELD_OUT = "#"
"""Prefix of held-out images: `#5` is the held-out image number 5, wherever a file is expected."""
