"""Memory counters and other facts that a device, its allocator and the host report of themselves."""
