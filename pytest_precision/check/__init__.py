"""Check: one cell, from two recorded sides to one verdict."""
