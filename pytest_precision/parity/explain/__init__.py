"""Explain the first difference of two runs: what error it looks like, and how it spreads."""
