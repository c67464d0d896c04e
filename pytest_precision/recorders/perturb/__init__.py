"""Change a run on purpose: by delays, random rounding, a planted defect or another seed."""
