"""Training steps made of a model, or of a factory in a file."""
