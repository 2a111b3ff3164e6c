"""One experiment on several processes."""
