"""A tree of real nodes: the same algorithm file, with a process and a disk for every node."""
