"""Revisions: a training script as it is in another commit, or in another installation."""
