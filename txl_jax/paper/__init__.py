"""The measurements, tables and pictures of the paper."""
