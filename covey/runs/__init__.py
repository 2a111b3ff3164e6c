"""Experiments and running them: rounds, scores, checkpoints, new devices."""
