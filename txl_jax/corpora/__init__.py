"""What preparing a corpus does; the only place that needs TFDS."""
