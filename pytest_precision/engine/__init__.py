"""Engine: one training loop under test, run phase by phase, and the tensors each phase shows."""
