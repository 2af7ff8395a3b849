"""Analyses of operator invocations: how long they took, what they saved for backward, and the two reports' tables."""
