"""A trained model in Python: text in, text out. See docs/python.md."""
