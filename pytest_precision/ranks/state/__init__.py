"""State: what a job starts from, what it must leave as it was, and how a change is named."""
