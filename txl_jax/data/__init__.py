"""Data: options, prepared corpora, streams of batches, vocabularies."""
