"""A person's images: reading them, sets of labelled ones, changing them for training, drawing them."""
