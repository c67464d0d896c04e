"""State: what a job starts from, what it must restore, and how a change is named."""
