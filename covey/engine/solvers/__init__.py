"""Descents of many models at once."""
