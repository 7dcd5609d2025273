"""What training reads: options, prepared corpora, streams, vocabularies."""
