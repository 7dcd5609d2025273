"""Preparation of corpora; the only package that imports TFDS."""
