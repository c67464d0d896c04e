"""Plugin: the hooks and fixtures that pytest calls. Heavy imports wait until a cell runs."""
