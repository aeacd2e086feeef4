"""Models as programs in plain JSON, which a page runs by itself."""
