"""A prefetching loader that makes a new stream in each epoch (huggingface/pytorch-image-models#2781); on h100:8GiB: cache of other streams."""

import torch
from torch import nn
import torch.nn.functional as F


class PrefetchLoader:
    def __init__(self, batches, batch_size):
        self.batches, self.batch_size = batches, batch_size

    def __iter__(self):
        stream = torch.cuda.Stream()
        ready = None
        for _ in range(self.batches):
            images = torch.zeros(self.batch_size, 3, 224, 224, dtype=torch.uint8).pin_memory()
            with torch.cuda.stream(stream):
                following = images.to("cuda", non_blocking=True).float().div_(255)
            if ready is not None:
                yield ready
            torch.cuda.current_stream().wait_stream(stream)
            following.record_stream(torch.cuda.current_stream())
            ready = following
        yield ready


model = nn.Sequential(nn.Conv2d(3, 64, 7, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 1000)).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = PrefetchLoader(batches=6, batch_size=256)
for epoch in range(12):
    for images in loader:
        loss = F.cross_entropy(model(images), torch.zeros(len(images), dtype=torch.long, device="cuda"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, torch.cuda.memory_allocated() >> 20, torch.cuda.memory_reserved() >> 20)
