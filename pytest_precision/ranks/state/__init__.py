"""Reset process-wide state before each job, and find what the job changed."""
