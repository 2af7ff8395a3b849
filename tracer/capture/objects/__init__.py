"""Python objects of a training: tensors, modules, optimizers, and who holds them."""
