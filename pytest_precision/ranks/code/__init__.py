"""Code: how the user's functions reach the ranks: as import paths, imported there."""
