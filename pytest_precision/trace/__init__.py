"""Recordings at rest: written, stored, sealed, read."""
