"""Run a training loop, record its state after each phase, and perturb it on purpose."""
