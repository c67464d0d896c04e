"""Change a run on purpose: by delays, random rounding or another seed."""
