"""Predictors: what a model answers for each kind of task, one kind of answer a file."""
