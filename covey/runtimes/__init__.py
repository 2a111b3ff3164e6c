"""Runtimes: they play the programs of an algorithm on the nodes of a tree."""
