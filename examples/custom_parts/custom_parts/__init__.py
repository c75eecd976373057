"""Parts of the trainer that another package adds: each is one file here and one line in pyproject.toml."""
