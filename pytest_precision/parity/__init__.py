"""Align two traces, compare them, judge, explain."""
