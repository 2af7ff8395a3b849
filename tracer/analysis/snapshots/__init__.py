"""What an allocator snapshot means, beyond what is in it: the allocator's decisions, made again."""
