"""Plugin: what pytest calls, in its order. Nothing heavy is imported before a cell runs."""
