"""What happened, from a file: chrome traces that torch.profiler wrote anywhere, read in parts into a recording."""
