"""timm: a network in channels_last with an average of its weights, mixup and a loss of its own."""

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV3

model = timm.create_model("resnet18", num_classes=10).cuda().to(memory_format=torch.channels_last)
average, mixup, criterion = ModelEmaV3(model), Mixup(mixup_alpha=0.2, num_classes=10), SoftTargetCrossEntropy()
optimizer = create_optimizer_v2(model, opt="lamb")
scaler = torch.amp.GradScaler()
for _ in range(8):
    images = torch.randn(8, 3, 64, 64, device="cuda").contiguous(memory_format=torch.channels_last)
    images, labels = mixup(images, torch.randint(0, 10, (8,), device="cuda"))
    with torch.autocast("cuda", torch.float16):
        loss = criterion(model(images), labels)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    average.update(model)
