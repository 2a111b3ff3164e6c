"""covey and its rivals on the same work, by turns: `python -m benchmarks.rivals`."""
