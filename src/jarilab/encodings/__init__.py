"""Every way to encode position, one idea a file."""
