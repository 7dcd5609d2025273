"""The modes of the program: one file for each value of --mode."""
