"""Command-line interface of the programs: flags, config files, pictures."""
