"""The kit of which all pages are made: one HTML file each, put together from modules."""
