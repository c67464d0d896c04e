"""Matrix: axes, cells (combinations of axis values) and sequences as plain data.

Nothing here imports torch or pytest.
"""
