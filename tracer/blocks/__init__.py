"""Memory of code that torch.compile generates, by what the code says of it."""
