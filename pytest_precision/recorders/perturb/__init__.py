"""Perturb: change a run on purpose: delays, random rounding, a planted defect, another seed."""
