# AaltoML/desplat#5; h100:4GiB
"""A scene of Gaussians, fitted to pictures; where gradients are large, Gaussians are added."""

import torch
from torch import nn

SHAPES = {"xyz": (3,), "features": (48,), "opacity": (1,), "scaling": (3,), "rotation": (4,)}


class GaussianModel:
    def __init__(self, count):
        self.tensors = {name: nn.Parameter(torch.rand(count, *shape, device="cuda")) for name, shape in SHAPES.items()}
        self.optimizer = torch.optim.Adam([{"params": [p], "name": name} for name, p in self.tensors.items()], lr=1e-3, eps=1e-15)
        self.accumulated = torch.zeros(count, device="cuda")

    def densification_postfix(self, new):
        for group in self.optimizer.param_groups:
            old, extension = group["params"][0], new[group["name"]]
            state = self.optimizer.state.pop(old)
            for moment in ("exp_avg", "exp_avg_sq"):
                state[moment] = torch.cat([state[moment], torch.zeros_like(extension)])
            parameter = nn.Parameter(torch.cat([old.detach(), extension]))
            group["params"][0] = self.tensors[group["name"]] = parameter
            self.optimizer.state[parameter] = state
        self.accumulated = torch.zeros(len(self.tensors["xyz"]), device="cuda")

    def densify(self, fraction):
        chosen = self.accumulated.topk(int(fraction * len(self.accumulated))).indices
        self.densification_postfix({name: p.detach()[chosen] for name, p in self.tensors.items()})


def render(scene, camera, pixels=4096):
    t = scene.tensors
    depth = (t["xyz"] * camera).sum(-1)
    size = t["scaling"].exp().prod(-1) * t["rotation"].norm(dim=-1)
    weight = t["opacity"].sigmoid().squeeze(-1) * torch.exp(-size * depth)
    colour = t["features"].view(-1, 16, 3).mean(1)
    return (weight[:, None] * colour)[:pixels].sum(0) + (weight[:, None] * colour).mean(0)


scene = GaussianModel(300_000)
for iteration in range(1, 101):
    picture = torch.rand(3, device="cuda")
    loss = (render(scene, torch.rand(3, device="cuda")) - picture).abs().mean()
    loss.backward()
    scene.accumulated += scene.tensors["xyz"].grad.norm(dim=-1)
    scene.optimizer.step()
    scene.optimizer.zero_grad()
    if iteration % 10 == 0:
        scene.densify(fraction=0.4)
        print(iteration, len(scene.accumulated), torch.cuda.memory_allocated() >> 20)
