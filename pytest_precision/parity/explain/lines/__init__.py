"""Which operation made the first wrong value: two logs of operations are read, values followed."""
