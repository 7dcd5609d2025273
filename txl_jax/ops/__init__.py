"""Pure functions on plain arrays, besides attention."""
