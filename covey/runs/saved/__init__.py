"""A run on disk: checkpoints, journals, locks, and what decides its bits."""
