"""Both sides of a moved cell, measured against one step in fp64."""
