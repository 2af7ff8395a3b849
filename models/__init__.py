"""Workloads to profile: a model, its data and what makes a training step; torch is all that they need."""
