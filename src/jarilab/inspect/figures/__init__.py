"""Figures for papers: maps, grids of heads, roles, lines, and weights over an image, drawn by matplotlib."""
