"""Trainers that hold themselves by their handlers (Project-MONAI/MONAI#3423); on h100:6GiB: reference cycle."""

import torch
from torch import nn
import torch.nn.functional as F


class Trainer:
    def __init__(self, network, optimizer, iterations):
        self.network, self.optimizer, self.iterations = network, optimizer, iterations
        self.handlers = {"iteration_completed": []}
        self.add_handler("iteration_completed", self.log)

    def add_handler(self, event, handler):
        self.handlers[event].append(handler)

    def log(self, loss):
        self.last = float(loss)

    def run(self):
        self.network.train()
        for _ in range(self.iterations):
            x = torch.randn(32, 2048, device="cuda")
            loss = F.mse_loss(self.network(x), x)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            for handler in self.handlers["iteration_completed"]:
                handler(loss.detach())


network = nn.Sequential(*[nn.Sequential(nn.Linear(2048, 2048), nn.ReLU()) for _ in range(20)]).cuda()
for round_ in range(50):
    optimizer = torch.optim.Adam(network.parameters())
    trainer = Trainer(network, optimizer, iterations=4)
    trainer.run()
    print(round_, torch.cuda.memory_allocated() >> 20)
