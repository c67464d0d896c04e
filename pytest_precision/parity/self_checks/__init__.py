"""What a recording must show by itself, before its agreement with another one means anything."""
