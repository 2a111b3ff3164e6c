"""The commands of a deployed tree."""
