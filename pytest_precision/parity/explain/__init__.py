"""A difference in words and figures: what it is, where it starts, how it spreads."""
