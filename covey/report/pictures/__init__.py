"""Pictures of runs, as PNG files."""
