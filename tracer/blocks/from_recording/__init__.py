"""Analyses of recordings: what each block was, when it lived, and what filled the device at the peak."""
