"""Tools for those who work on covey; none is installed with it."""
