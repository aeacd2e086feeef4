"""HTML pages and SVG files: building a page, the model in it, and drawings of encodings."""
