"""A person's images: reading them, sets of labelled ones, changing them for training, drawing them."""

HELD_OUT = "#"
"""`#5` is the held-out image number 5, where a file is asked for."""
