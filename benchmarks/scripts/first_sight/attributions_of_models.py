# jmschrei/tangermeme#84; h100:5GiB
"""Attributions of DNA sequences by DeepLIFT, with each of several models that were trained on other cells."""

import torch
from torch import nn


class Profile(nn.Module):
    """Dilated convolutions over a sequence, with a count as the result."""

    def __init__(self, width=512, layers=8):
        super().__init__()
        self.first, self.first_act = nn.Conv1d(4, width, 21, padding=10), nn.ReLU()
        self.convs = nn.ModuleList([nn.Conv1d(width, width, 3, padding=2**i, dilation=2**i) for i in range(1, layers)])
        self.acts = nn.ModuleList([nn.ReLU() for _ in range(1, layers)])
        self.count = nn.Linear(width, 1)

    def forward(self, x):
        x = self.first_act(self.first(x))
        for conv, act in zip(self.convs, self.acts):
            x = x + act(conv(x))
        return self.count(x.mean(-1))


def save_input(module, inputs):
    module.input = inputs[0].clone().detach()


def save_output(module, inputs, outputs):
    module.output = outputs.clone().detach()


def rescale(module, grad_input, grad_output):
    delta_in = module.input - module.input.flip(0)
    delta_out = module.output - module.output.flip(0)
    return (torch.where(delta_in.abs() < 1e-6, grad_input[0], grad_output[0] * delta_out / delta_in),)


def register_hooks(model):
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.handles = [
                module.register_forward_pre_hook(save_input),
                module.register_forward_hook(save_output),
                module.register_full_backward_hook(rescale),
            ]


def clear_hooks(model):
    for module in model.modules():
        if hasattr(module, "handles"):
            for handle in module.handles:
                handle.remove()
            del module.handles


def deep_lift_shap(model, sequences, references):
    register_hooks(model)
    try:
        x = torch.cat([sequences, references]).requires_grad_()
        (gradients,) = torch.autograd.grad(model(x).sum(), x)
    finally:
        clear_hooks(model)
    return (gradients[: len(sequences)] * (sequences - references)).sum(1).cpu()


models = {cell: Profile().cuda().eval() for cell in ("K562", "GM12878", "HepG2", "A549", "HCT116", "IMR90")}
sequences = torch.randn(8, 4, 2114, device="cuda")
for cell, model in models.items():
    attributions = deep_lift_shap(model, sequences, sequences[..., torch.randperm(2114, device="cuda")])
    print(cell, attributions.shape)
