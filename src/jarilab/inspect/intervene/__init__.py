"""Edit attention or positions in a forward, and measure the effect."""
