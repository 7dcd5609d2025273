"""A config from its schema to an open job: what modes and programs share."""
