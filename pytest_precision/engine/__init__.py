"""Engine: one live training loop, and what it shows after each phase."""
