"""Answers about the allocator: reserved memory, failed requests, and replays under other settings or requests."""
