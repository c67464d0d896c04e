"""Checks: each is a function from what is known of a set-up to the findings of one kind."""
