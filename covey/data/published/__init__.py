"""Published data sets, and made ones."""
