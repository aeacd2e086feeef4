"""Where tokens are told to be: position policies, one idea a file."""
