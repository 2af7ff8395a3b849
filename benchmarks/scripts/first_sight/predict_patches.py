# keras-team/keras#23110; h100:3GiB
"""Segments a volume patch by patch; the front end passes nested structures of tensors to the model and back."""

import torch
from torch import nn
from torch.utils import _pytree


class Segmenter(nn.Module):
    def __init__(self, width=8, classes=14):
        super().__init__()
        self.body = nn.Sequential(nn.Conv3d(1, width, 3, padding=1), nn.ReLU(), nn.Conv3d(width, width, 3, padding=1), nn.ReLU())
        self.head = nn.Conv3d(width, classes, 1)

    def forward(self, inputs):
        return {"logits": self.head(self.body(inputs["image"]))}


def map_structure(function, structure):
    """Apply a function to each entry of a structure."""
    leaves, spec = _pytree.tree_flatten(structure, is_leaf=lambda x: x is not structure)
    return _pytree.tree_unflatten([function(leaf) for leaf in leaves], spec)


class Predictor:
    def __init__(self, model):
        self.model = model

    def predict_on_batch(self, batch):
        inputs = map_structure(lambda x: torch.as_tensor(x).cuda(), batch)
        with torch.inference_mode():
            outputs = self.model(inputs)
        return map_structure(lambda x: x.argmax(1).to(torch.uint8).cpu(), outputs)


def patches(volume, size=96):
    for z in range(0, volume.shape[2], size):
        for y in range(0, volume.shape[3], size):
            for x in range(0, volume.shape[4], size):
                yield (slice(z, z + size), slice(y, y + size), slice(x, x + size))


predictor = Predictor(Segmenter().cuda().eval())
volume = torch.randn(4, 1, 288, 288, 288)
classes = torch.zeros(4, 288, 288, 288, dtype=torch.uint8)
for number, where in enumerate(patches(volume)):
    predicted = predictor.predict_on_batch({"image": volume[(..., *where)]})
    classes[(slice(None), *where)] = predicted["logits"]
    print(number, classes.shape)
