"""How a model, a factory in a file or a step function becomes a training step."""
