"""torchvision: Faster R-CNN, whose boxes' number is decided by values."""

import torch
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_fpn

model = fasterrcnn_mobilenet_v3_large_fpn(weights=None, weights_backbone=None, num_classes=5).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for _ in range(8):
    images = [torch.rand(3, 200, 300, device="cuda") for _ in range(2)]
    boxes = torch.tensor([[10.0, 20.0, 90.0, 120.0], [50.0, 60.0, 200.0, 180.0]], device="cuda")
    targets = [{"boxes": boxes, "labels": torch.tensor([1, 2], device="cuda")} for _ in images]
    loss = sum(model(images, targets).values())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
