# control; h100:5GiB
"""Fine-tunes a picture classifier with mixed precision, and measures it after each epoch."""

import torch
from torch import nn
import torch.nn.functional as F
import torchvision


def batches(count, size):
    for _ in range(count):
        yield torch.rand(size, 3, 224, 224), torch.randint(0, 102, (size,))


def train_epoch(model, optimizer, count):
    model.train()
    running_loss, seen = 0.0, 0
    for images, labels in batches(count, 48):
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(images.cuda()), labels.cuda(), label_smoothing=0.1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        running_loss += loss.item() * len(images)
        seen += len(images)
    return running_loss / seen


@torch.no_grad()
def validate(model, count):
    model.eval()
    correct, predictions = 0, []
    for images, labels in batches(count, 64):
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(images.cuda())
        predictions.append(logits.argmax(1).cpu())
        correct += (predictions[-1] == labels).sum().item()
    return correct / sum(len(p) for p in predictions)


model = torchvision.models.resnet50(weights=None, num_classes=102).cuda().to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
for epoch in range(2):
    loss = train_epoch(model, optimizer, 3)
    print(epoch, loss, validate(model, 2))
    best = {name: value.cpu() for name, value in model.state_dict().items()}
