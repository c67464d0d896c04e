"""Recordings are read: compared, checked by themselves, explained, and put into a verdict."""
