"""Lines: log the tensor operations of a run, each with the source line that called it."""
