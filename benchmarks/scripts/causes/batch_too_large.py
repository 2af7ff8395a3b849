"""A batch too large, and nothing wrong; on 8GiB: repeated parts."""

import torch
import torchvision

model = torchvision.models.resnet50().cuda()
opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
for _step in range(3):
    x, y = torch.randn(128, 3, 224, 224, device="cuda"), torch.zeros(128, dtype=torch.long, device="cuda")
    loss = torch.nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
