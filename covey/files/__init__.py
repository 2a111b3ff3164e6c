"""Experiment files: from TOML to an experiment."""
