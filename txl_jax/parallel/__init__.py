"""Parallelism over devices and processes."""
