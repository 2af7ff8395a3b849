"""What happened: the only rooms that touch a running torch."""
