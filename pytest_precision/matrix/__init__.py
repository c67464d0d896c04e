"""Matrix: axes, cells and sequences as plain data; imports neither torch nor pytest."""
