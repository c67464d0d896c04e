"""Perturbations of a run: delays, random roundings, planted defects, other data."""
