"""Which device holds which example."""
