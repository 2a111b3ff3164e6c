"""Scores of models and figures of nodes."""
