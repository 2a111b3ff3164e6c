"""A tree of real machines: nodes with a disk, a transport and certificates."""
