"""Run folders: written, resumed, opened again."""
