"""A session around a loop, a script or a workload: where its steps end, what it records, and its files."""
