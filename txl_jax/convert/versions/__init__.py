"""The tensors of each code base; the original one is the form between."""
