"""Pure functions on plain arrays: fast attention, products and softmaxes."""
