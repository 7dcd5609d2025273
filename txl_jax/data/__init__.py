"""Corpora: from text to streams of tokens."""
