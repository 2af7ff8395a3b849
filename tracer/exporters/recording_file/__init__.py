"""recording.npz: what was observed in a run, as columns, written and read back. docs/recording.md describes it.

What takes columns raises RecordingError where one is missing, or is not what it has to be.
"""
