"""Layers, norms, dropout, losses and initial values of models."""
