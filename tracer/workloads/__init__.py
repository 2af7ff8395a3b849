"""How a model, or a factory in a file, becomes a training step."""
