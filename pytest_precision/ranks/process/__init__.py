"""One rank's process, from its start to its end, and the messages that it exchanges."""
