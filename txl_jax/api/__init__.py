"""The Python API of training and of trained models; see docs/python.md."""
