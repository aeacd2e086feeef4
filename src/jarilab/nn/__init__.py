"""Modules that models are built of."""
