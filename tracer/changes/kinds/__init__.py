"""Changes of a training step: one file for each kind, with a function `candidates` that says which fit a program."""
