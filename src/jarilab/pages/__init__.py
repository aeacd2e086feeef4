"""HTML pages and SVG files."""
