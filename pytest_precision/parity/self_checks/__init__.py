"""Checks of one run alone, without which its agreement with another run proves nothing.

Three take something of both runs, since one alone cannot answer: `data_check` asks whether both
were given the same data, `tolerance` how far the criterion would let one be from the other, and
`vacuity.disturbed` takes what a layout holds after a swap from the run that has that layout.
"""
