"""The parts of the docs site that are not pages of docs/ (mkdocs.yml)."""
