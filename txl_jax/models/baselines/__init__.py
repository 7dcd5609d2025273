"""The models that the paper compares with."""
