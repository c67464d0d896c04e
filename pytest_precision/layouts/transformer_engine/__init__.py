"""Layouts whose layers and optimizer are Transformer Engine's own."""
