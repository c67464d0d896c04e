"""What watches a run while it goes on, and keeps no recording of it."""
