"""One training loop under test, run phase by phase, whose tensors can be read in between."""
