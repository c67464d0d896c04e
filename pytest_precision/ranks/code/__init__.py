"""Code: the user's functions on their way to the ranks, by import path."""
