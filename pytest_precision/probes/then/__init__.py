"""A side compared with itself: as another commit or installation has it."""
