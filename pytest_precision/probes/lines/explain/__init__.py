"""Find the operation that made the first wrong value, from the operation logs of both runs."""
