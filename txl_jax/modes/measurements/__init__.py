"""The measurements of the paper: RECL, attention length, speed, maps."""
