"""The folder of a run, the files in it, and the terminal output of runs."""
