"""Commands: what `python -m pytest_precision` does without pytest, one module per command."""
