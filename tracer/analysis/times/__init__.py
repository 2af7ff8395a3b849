"""Analyses of time in a trace: what a device did, what it waited for, and who launched it."""
