"""What a device, its allocator and the host say of themselves."""
