"""Nodes that share nothing."""
