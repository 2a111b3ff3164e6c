"""A run on disk: its folder, checkpoints, journals, locks, and what decides its bits."""
