# aleximmer/Laplace#138; h100:4GiB
"""A trained classifier of species says how sure it is, from a normal distribution of the weights of its last layer."""

import torch
from torch import nn
import torch.nn.functional as F


class Classifier(nn.Module):
    def __init__(self, species, width=128):
        super().__init__()
        sizes = [(3, 32), (32, 64), (64, 96), (96, width)]
        convs = [nn.Sequential(nn.Conv2d(i, o, 3, 2, 1), nn.GroupNorm(8, o), nn.GELU()) for i, o in sizes]
        self.features = nn.Sequential(*convs, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.last = nn.Linear(width, species)

    def forward(self, pictures):
        return self.last(self.features(pictures))


class LastLayerLaplace:
    """Variances of the last layer's weights, each for itself, from the curvature of the loss."""

    def __init__(self, model, prior_precision=1.0):
        self.model, self.last = model, model.last
        self.precision = torch.full((sum(p.numel() for p in self.last.parameters()),), prior_precision, device="cuda")

    @torch.no_grad()
    def fit(self, batches):
        for pictures in batches:
            features = self.model.features(pictures)
            probabilities = self.last(features).softmax(-1)
            spread = probabilities * (1 - probabilities)
            self.precision += torch.cat([(spread.T @ features.square()).flatten(), spread.sum(0)])

    def jacobians(self, features):
        """Derivatives of the logits by the weights and then the biases of the last layer."""
        identity = torch.eye(self.last.out_features, device="cuda").expand(len(features), -1, -1)
        by_weights = torch.einsum("bp,bij->bijp", features, identity).flatten(2)
        return torch.cat([by_weights, identity], 2)

    @torch.no_grad()
    def predict(self, pictures):
        features = self.model.features(pictures)
        jacobians = self.jacobians(features)
        covariance = torch.einsum("bcp,p,bkp->bck", jacobians, 1 / self.precision, jacobians)
        variance = covariance.diagonal(dim1=1, dim2=2)
        return (self.last(features) / torch.sqrt(1 + torch.pi / 8 * variance)).softmax(-1)


def load_pictures(count, size):
    for start in range(0, count, size):
        yield torch.rand(min(size, count - start), 3, 160, 160).cuda()


laplace = LastLayerLaplace(Classifier(species=1500).cuda().eval())
laplace.fit(load_pictures(256, size=64))
doubtful = 0
for pictures in load_pictures(16, size=2):
    confidence = laplace.predict(pictures).amax(-1)
    doubtful += int((confidence < 0.5).sum())
print(doubtful, "pictures for an expert")
