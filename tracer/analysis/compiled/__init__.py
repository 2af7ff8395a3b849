"""What the code that torch.compile generated says of the memory that it asked for."""
