"""A person's pictures: reading them, sets of labelled ones, changing them for training, drawing them."""
