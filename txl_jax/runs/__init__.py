"""The folder of a run and what is in it."""
