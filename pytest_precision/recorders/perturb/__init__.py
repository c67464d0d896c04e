"""What is done to a run on purpose, to see what comes of it."""
