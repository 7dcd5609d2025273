"""Measurements of the paper: RECL, attention length, speed and maps."""
