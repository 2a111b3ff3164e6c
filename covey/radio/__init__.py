"""Radio: channels, the seconds and joules of a round, and plans that share each cell's band."""
