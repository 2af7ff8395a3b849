"""Analyses of long runs: what the counters of hundreds of steps say, without looking at a single block."""
