"""recording.npz: what was observed in a run, written and read back. docs/recording.md describes it."""
