"""The command `covey`: experiments from TOML files, run folders, resume, advice."""
