"""Positions of tokens, masks, image patches and boxes."""
