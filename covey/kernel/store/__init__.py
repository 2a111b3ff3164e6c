"""What nodes remember from round to round, in memory or in files."""
