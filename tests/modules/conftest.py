"""Every test runs in two surroundings, which must not show."""

from surroundings import one_thread, surroundings

__all__ = ["one_thread", "surroundings"]
