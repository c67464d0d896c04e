"""Training loops that exist already, recorded as they are."""
