"""Who wants to know: one file per output format; it takes findings and a path, and writes."""
