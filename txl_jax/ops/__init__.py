"""Pure functions on plain arrays: what makes models fast, and softmaxes."""
