"""A session around a loop, a run of a workload, its files, and several ranks."""
