"""Transfer the user's functions to the ranks as import paths, and import them there."""
