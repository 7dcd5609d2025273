"""Shared by the modes: the config, the job, and the restored model."""
