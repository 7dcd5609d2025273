"""Tensor names of each code base; all convert via those of the original."""
