"""What to change so that less memory is needed, where every change is tried before it is recommended."""
