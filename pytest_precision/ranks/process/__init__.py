"""Process: one rank's process, from its start to its end, and what it is told and says."""
