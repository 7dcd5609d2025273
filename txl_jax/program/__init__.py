"""The foundation of all programs: errors, settings, files, signals."""
