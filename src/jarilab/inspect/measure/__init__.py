"""Numbers that describe a head, computed from its maps."""
