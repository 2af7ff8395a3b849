"""Weights of all clients of a round, copied on the GPU; on 6GiB: results kept or copies of weights."""

import copy

import torch
import torch.nn.functional as F
import torchvision

model = torchvision.models.vgg11(num_classes=10).cuda()


def update_weights(model):
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.5)
    for _step in range(2):
        x, y = torch.randn(8, 3, 224, 224).cuda(), torch.randint(0, 10, (8,)).cuda()
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return model.state_dict(), loss.item()


for _round in range(2):
    local_weights = []
    for _client in range(20):
        w, _ = update_weights(copy.deepcopy(model))
        local_weights.append(copy.deepcopy(w))
    average = copy.deepcopy(local_weights[0])
    for key in average:
        for w in local_weights[1:]:
            average[key] += w[key]
    model.load_state_dict(average)
