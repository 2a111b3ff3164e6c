"""Streams between a parent and its children."""
