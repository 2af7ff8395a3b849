"""The CUDA caching allocator as a model: what it would reserve, under any settings, on any device, without one.

Nothing here imports torch or allocates memory. `CachingAllocator` decides where each request goes as torch's does;
`history` and `start_state` turn a recording into what the model replays, `reproduce` holds the model against it, and
`replay` runs it again under other settings.
"""
