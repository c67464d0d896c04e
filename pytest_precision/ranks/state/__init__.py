"""State: the state of a process that a job starts from and must restore, and changes of it."""
