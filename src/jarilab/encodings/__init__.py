"""Position encodings, by family: absolute, rotary, bias, content."""
