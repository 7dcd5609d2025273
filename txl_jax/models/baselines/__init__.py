"""Baselines: models that the Transformer-XL paper compares with."""
