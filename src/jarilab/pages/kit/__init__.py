"""What all pages share: bundling into one HTML file, colours, images and numbers."""
