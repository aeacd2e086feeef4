"""Attention: the definition, its kernels, multi-head attention, the cache."""
