"""From a tree to processes, seats and scripts."""
