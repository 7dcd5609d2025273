"""The shell of every program: flags, errors, settings, files, the terminal."""
