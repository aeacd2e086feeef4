"""Paired trials, statistics, tables and the report."""
