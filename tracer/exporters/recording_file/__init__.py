"""recording.npz: what was observed in a run, as columns, written and read back. docs/recording.md describes it."""
