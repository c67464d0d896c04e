"""Engine: one side's training loop, run phase by phase, and the tensors each phase shows."""
