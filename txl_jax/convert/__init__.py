"""Weights of the published code bases, both ways."""
