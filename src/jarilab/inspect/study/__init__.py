"""Heads over a data set: measures, roles and other statistics, in constant memory."""
