"""covey beside other simulators on the same work: see README.md in this folder."""
