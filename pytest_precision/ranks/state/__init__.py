"""State: the process-wide state from which a job starts, and how changes by the job are found."""
