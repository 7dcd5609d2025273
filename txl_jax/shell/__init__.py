"""What programs have of a shell: flags, config files, pictures."""
