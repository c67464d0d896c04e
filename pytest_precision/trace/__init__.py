"""Recordings on disk: how they are written, indexed, checked for damage and read."""
