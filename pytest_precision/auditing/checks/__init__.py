"""Checks: functions from the facts about a model and its optimizer to findings of one kind."""
