# serend1p1ty/SeqNet#14; h100:4GiB
"""A person of one picture is looked for in a gallery of street scenes."""

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet50


class Gallery(Dataset):
    def __init__(self, pictures):
        self.pictures = pictures

    def __len__(self):
        return self.pictures

    def __getitem__(self, index):
        return torch.rand(3, 768, 1280), f"s{index:05d}.jpg"


class SeqNet(nn.Module):
    def __init__(self, people=100, width=256):
        super().__init__()
        trunk = resnet50(weights=None)
        self.stem = nn.Sequential(trunk.conv1, trunk.bn1, trunk.relu, trunk.maxpool, trunk.layer1, trunk.layer2, trunk.layer3)
        self.people = people
        self.rpn = nn.Sequential(nn.Conv2d(1024, 512, 3, padding=1), nn.ReLU(), nn.Conv2d(512, 5, 1))
        self.head = trunk.layer4
        self.box, self.score, self.embedding = nn.Linear(2048, 4), nn.Linear(2048, 1), nn.Linear(2048, width)

    def crops(self, features, boxes):
        y, x = torch.meshgrid(torch.linspace(-0.1, 0.1, 14), torch.linspace(-0.1, 0.1, 14), indexing="ij")
        grid = torch.stack([x, y], -1).to(features) + boxes[:, :, None, None, :2].tanh()
        crops = [F.grid_sample(f[None].expand(len(g), -1, -1, -1), g, align_corners=False) for f, g in zip(features, grid)]
        return torch.cat(crops)

    def forward(self, pictures, boxes=None):
        features = self.stem(pictures)
        if boxes is None:
            proposals = self.rpn(features).flatten(2).transpose(1, 2)
            best = proposals[..., 0].topk(self.people, 1).indices
            boxes = proposals[..., 1:].gather(1, best[..., None].expand(-1, -1, 4))
        pooled = self.head(self.crops(features, boxes)).mean((2, 3))
        embeddings = F.normalize(self.embedding(pooled), dim=1)
        shape = boxes.shape[:2]
        return {
            "boxes": boxes + self.box(pooled).view(*shape, 4),
            "scores": self.score(pooled).sigmoid().view(shape),
            "embeddings": embeddings.view(*shape, -1),
        }


def search(model, query, query_box, loader):
    model.eval()
    wanted = model(query.cuda(), query_box.cuda())["embeddings"][0, 0]
    found = []
    for pictures, names in loader:
        detections = model(pictures.cuda())
        similarity = detections["embeddings"] @ wanted
        for name, boxes, scores, likeness in zip(names, detections["boxes"], detections["scores"], similarity):
            best = int(likeness.argmax())
            found.append((name, boxes[best].tolist(), scores[best].item(), likeness[best].item()))
    return sorted(found, key=lambda item: -item[3])


model = SeqNet().cuda()
loader = DataLoader(Gallery(16), batch_size=4)
for place in search(model, torch.rand(1, 3, 768, 1280), torch.rand(1, 1, 4), loader)[:5]:
    print(place)
