"""Changes by which less memory is needed; every one is tried before it is recommended."""
