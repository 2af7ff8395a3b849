"""Hooks that save activations in no_grad (meta-pytorch/opacus#176); on 5GiB: results kept."""

import torch
from torch import nn


def capture_activations(module, inputs, _output):
    if not module.training:
        return
    if not hasattr(module, "activations"):
        module.activations = []
    module.activations.append(inputs[0].detach())


def capture_backprops(module, _grad_input, grad_output):
    module.activations.pop()


model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1),
    nn.GroupNorm(4, 32),
    nn.ReLU(),
    nn.Conv2d(32, 64, 3, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(4),
    nn.Flatten(),
    nn.Linear(1024, 10),
).cuda()
for layer in model:
    if isinstance(layer, (nn.Conv2d, nn.Linear)):
        layer.register_forward_hook(capture_activations)
        layer.register_full_backward_hook(capture_backprops)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _epoch in range(3):
    model.train()
    for _ in range(5):
        x, y = torch.randn(128, 3, 64, 64, device="cuda"), torch.randint(10, (128,), device="cuda")
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        correct = 0
        for _ in range(60):
            x, y = torch.randn(128, 3, 64, 64, device="cuda"), torch.randint(10, (128,), device="cuda")
            correct += (model(x).argmax(1) == y).sum().item()
