"""Comparisons of encodings: studies, their trials, statistics, tables and reports."""
