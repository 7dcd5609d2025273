"""python -m txl_jax.report: results of runs beside the tables of the paper."""
