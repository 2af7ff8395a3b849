"""Trials: whether a script or a workload fits, what makes it fit, and what it would need, found by running it."""
