"""How fast, and in how much memory, a deployed tree runs: `python -m benchmarks.deployed`."""
