"""Process: one rank's process, from its start to its end, and the messages it exchanges."""
