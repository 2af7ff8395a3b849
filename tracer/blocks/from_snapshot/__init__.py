"""Analyses of allocator snapshots, without torch: what filled each device, why it ran out, what is reserved and why."""
