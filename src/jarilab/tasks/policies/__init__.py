"""Position policies, which assign position IDs to tokens, one idea a file."""
