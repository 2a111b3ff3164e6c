"""One node: its disk, its answers, its process."""
