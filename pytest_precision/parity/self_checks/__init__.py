"""Checks of one run alone, without which its agreement with another run proves nothing."""
