"""The data of training: options, prepared corpora, streams, vocabularies."""
