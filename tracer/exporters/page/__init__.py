"""The page: one HTML file that opens from disk, of a run, of a snapshot, of two compared."""
