"""What everything stands on: errors, settings, files, the terminal."""
