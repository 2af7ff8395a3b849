# roboflow/inference#2682; h100:4GiB
"""Instance segmentation of photographs: masks of all detections, in the photograph's own size."""

import torch
from torch import nn
import torch.nn.functional as F


class Segmenter(nn.Module):
    def __init__(self, width=48, prototypes=32):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1), nn.SiLU(), nn.Conv2d(width, 2 * width, 3, 2, 1), nn.SiLU(), nn.Conv2d(2 * width, 2 * width, 3, 1, 1), nn.SiLU()
        )
        self.prototypes = nn.Conv2d(2 * width, prototypes, 1)
        self.head = nn.Conv2d(2 * width, 5 + prototypes, 8, 8)

    def forward(self, picture):
        features = self.backbone(picture)
        return self.head(features).flatten(2).transpose(1, 2)[0], self.prototypes(features)[0]


def align_results(masks, height, width, threshold=0.5):
    masks = F.interpolate(masks.unsqueeze(0), size=(height, width), mode="bilinear", align_corners=False).squeeze(0)
    return masks > threshold


def predict(model, photograph, detections=140):
    height, width = photograph.shape[-2:]
    picture = F.interpolate(photograph[None].float() / 255, size=(640, 640), mode="bilinear", align_corners=False)
    predictions, prototypes = model(picture)
    best = predictions[:, 4].topk(detections).indices
    coefficients = predictions[best, 5:]
    masks = (coefficients @ prototypes.flatten(1)).sigmoid().view(detections, *prototypes.shape[-2:])
    masks = align_results(masks, height, width)
    return predictions[best, :4], masks.flatten(1).sum(1)


model = Segmenter().cuda().eval()
with torch.inference_mode():
    for height, width in [(480, 640), (1080, 1920), (2448, 3264)]:
        photograph = torch.randint(0, 256, (3, height, width), dtype=torch.uint8).cuda()
        boxes, areas = predict(model, photograph)
        print(height, width, boxes.shape, areas.shape)
