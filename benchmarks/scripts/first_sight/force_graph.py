# deepmodeling/deepmd-kit#4006; h100:6GiB
"""Molecular dynamics with a learned potential: energy, forces and atomic virial at each step."""

import torch
from torch import nn


class DescriptorDPA(nn.Module):
    """Embeds the distances to the neighbours of each atom, and mixes them by layers that repeat."""

    def __init__(self, width, layers):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width))
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(width, 2 * width), nn.Tanh(), nn.Linear(2 * width, width)) for _ in range(layers))

    def forward(self, edges):
        distance = (edges.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        g = self.embed(torch.cat([1 / distance, edges / distance], -1))
        for layer in self.layers:
            g = g + layer(g)
        return g.mean(1)


class EnergyModel(nn.Module):
    def __init__(self, width=64, layers=6):
        super().__init__()
        self.descriptor = DescriptorDPA(width, layers)
        self.fitting_net = nn.Sequential(nn.Linear(width, 240), nn.Tanh(), nn.Linear(240, 1))

    def forward(self, coord, neighbours, do_atomic_virial=False):
        coord = coord.detach().requires_grad_()
        edges = coord[neighbours] - coord[:, None]
        atom_energy = self.fitting_net(self.descriptor(edges))
        return self.fit_output_to_model_output(coord, atom_energy, do_atomic_virial)

    def fit_output_to_model_output(self, coord, atom_energy, do_atomic_virial):
        energy = atom_energy.sum()
        force = -torch.autograd.grad(energy, coord, create_graph=True)[0]
        virial = -force.T @ coord
        return {"energy": energy, "force": force, "virial": virial}


class DeepPot:
    def __init__(self, model):
        self.model = model.eval()

    def eval(self, coord, neighbours):
        result = self.model(coord, neighbours)
        return {name: value.detach() for name, value in result.items()}


potential = DeepPot(EnergyModel().cuda())
for atoms in (1000, 4000, 12000):
    coord, velocity = torch.rand(atoms, 3, device="cuda"), torch.zeros(atoms, 3, device="cuda")
    neighbours = torch.randint(0, atoms, (atoms, 48), device="cuda")
    for step in range(2):
        velocity = velocity + 0.001 * potential.eval(coord, neighbours)["force"]
        coord = coord + 0.001 * velocity
    print(atoms, coord.shape)
