"""Record the files that a job reads, so that results from changed files are not reused."""
