"""What `txl_jax.prepare` does; the only package that imports TFDS."""
