"""Programs and rounds as CUDA graphs."""
