"""Many devices and many processes."""
