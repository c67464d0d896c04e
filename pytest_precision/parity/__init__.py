"""Compare recorded training runs, check each one on its own, and explain how they differ."""
