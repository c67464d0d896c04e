"""Files: what a job reads of the disk, so that what was computed from other files is noticed."""
