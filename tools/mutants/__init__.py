"""Careless one-line changes to the product, and whether `make test` notices them: `python -m tools.mutants`."""
