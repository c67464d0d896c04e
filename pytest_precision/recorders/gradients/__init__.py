"""Gradients: recompute a step's losses and gradients by a simple loop, and compare them."""
