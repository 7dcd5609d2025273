"""Benchmarks; docs/benchmarks.md says how to run them."""
