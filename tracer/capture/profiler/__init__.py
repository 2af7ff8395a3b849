"""Torch's profiler: switched on, and its event tree read once."""
