"""Weights of the published code bases, converted both ways."""
