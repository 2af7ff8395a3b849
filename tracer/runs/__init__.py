"""A session around a loop, a run of a workload, its results, its files, and several ranks."""
