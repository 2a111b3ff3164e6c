"""Losses and metrics, as sums over examples."""
