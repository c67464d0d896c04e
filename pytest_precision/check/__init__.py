"""Run one parity check: record the candidate and the reference, and decide the result."""
