# APPFL/APPFL#112; h100:4GiB
"""Ninety hospitals train one model in rounds, each by its own pictures; a server takes the mean of their weights."""

import copy

import torch
from torch import nn
import torch.nn.functional as F


class CNN(nn.Module):
    def __init__(self, classes=62, size=28):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 5, padding=2), nn.Conv2d(32, 64, 5, padding=2)
        self.fc1, self.fc2 = nn.Linear(64 * (size // 4) ** 2, 2048), nn.Linear(2048, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class Client:
    def __init__(self, number, model, samples, batch_size=16):
        self.id, self.model, self.samples, self.batch_size = number, model, samples, batch_size
        self.primal_state = {}

    def update(self, global_state, epochs=1):
        self.model.load_state_dict(global_state)
        self.model.to("cuda").train()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        for _ in range(epochs):
            for _ in range(self.samples // self.batch_size):
                pictures, labels = torch.rand(self.batch_size, 1, 28, 28), torch.randint(0, 62, (self.batch_size,))
                loss = F.cross_entropy(self.model(pictures.cuda()), labels.cuda())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        self.primal_state = copy.deepcopy(self.model.state_dict())
        return {"id": self.id, "primal": self.primal_state, "weight": self.samples}


class Server:
    def __init__(self, model):
        self.model, self.primal_states, self.weights = model, {}, {}

    def primal_recover_from_local_states(self, local_states):
        for states in local_states:
            self.primal_states[states["id"]] = copy.deepcopy(states["primal"])
            self.weights[states["id"]] = states["weight"]

    @torch.no_grad()
    def update(self, local_states):
        self.primal_recover_from_local_states(local_states)
        total, global_state = sum(self.weights.values()), {}
        for name, value in self.model.state_dict().items():
            if value.is_floating_point():
                parts = [state[name] * (self.weights[i] / total) for i, state in self.primal_states.items()]
                global_state[name] = torch.stack(parts).sum(0)
            else:
                global_state[name] = self.primal_states[0][name]
        self.model.load_state_dict(global_state)


def run(model, clients, rounds):
    server = Server(model)
    for number in range(rounds):
        global_state = server.model.state_dict()
        local_states = [client.update(global_state) for client in clients]
        server.update(local_states)
        print("round", number, "of", rounds)


model = CNN()
local_model = copy.deepcopy(model)
clients = [Client(number, local_model, samples=64) for number in range(90)]
run(model, clients, rounds=2)
