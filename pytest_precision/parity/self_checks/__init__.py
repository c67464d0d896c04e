"""Checks of one run by itself, without which its agreement with another run proves nothing."""
