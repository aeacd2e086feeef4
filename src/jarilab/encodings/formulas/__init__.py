"""The papers' equations in float64, which the laws compare encodings with."""
