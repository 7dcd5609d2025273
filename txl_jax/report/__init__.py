"""python -m txl_jax.report: a folder of runs beside the tables of the paper."""
