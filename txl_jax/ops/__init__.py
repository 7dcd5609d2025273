"""Pure functions on plain arrays: fast attention, matmuls and softmaxes."""
