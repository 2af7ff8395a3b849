# muellerzr/fastinference#7; h100:3GiB
"""Names the plants on photographs of leaves with a trained network, and writes down the names and how sure it was."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models import efficientnet_b0

SPECIES = [f"species {i}" for i in range(300)]


class Photographs(Dataset):
    def __init__(self, photographs, size=224):
        self.album = torch.randint(0, 256, (32, 3, size, size), dtype=torch.uint8)
        self.photographs = photographs

    def __len__(self):
        return self.photographs

    def __getitem__(self, i):
        return self.album[i % len(self.album)].float() / 255, i % len(SPECIES)


class Learner:
    def __init__(self, model, vocabulary, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)):
        self.model, self.vocabulary = model.cuda(), vocabulary
        self.mean, self.std = (torch.tensor(values, device="cuda").view(1, 3, 1, 1) for values in (mean, std))

    def one_batch(self, batch):
        pictures, labels = batch
        return (pictures.cuda() - self.mean) / self.std, labels.cuda()

    def decode_inputs(self, pictures):
        return ((pictures * self.std + self.mean) * 255).clamp(0, 255).byte()

    def get_preds(self, loader, raw_outs=False, fully_decoded=False):
        """Classes and their probabilities, and with fully_decoded the photographs too."""
        inps, outs, targs = [], [], []
        activation = nn.Identity() if raw_outs else nn.Softmax(-1)
        self.model.eval()
        with torch.no_grad():
            for batch in loader:
                pictures, labels = self.one_batch(batch)
                out = activation(self.model(pictures))
                inps.append(pictures)
                outs.append(out.cpu())
                targs.append(labels.cpu())
        outs, targs = torch.cat(outs), torch.cat(targs)
        certainties, classes = outs.max(-1)
        results = [[self.vocabulary[c] for c in classes.tolist()], certainties, targs]
        if fully_decoded:
            results.append(torch.cat([self.decode_inputs(pictures).cpu() for pictures in inps]))
        return results


def fine_tune(learner, loader, steps=4):
    optimizer = torch.optim.Adam(learner.model.classifier.parameters(), lr=1e-3)
    learner.model.train()
    learner.model.features.requires_grad_(False).eval()
    for step, batch in zip(range(steps), loader):
        pictures, labels = learner.one_batch(batch)
        loss = nn.functional.cross_entropy(learner.model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item())


learner = Learner(efficientnet_b0(num_classes=len(SPECIES)), SPECIES)
fine_tune(learner, DataLoader(Photographs(512), batch_size=64, shuffle=True))
names, certainties, labels = learner.get_preds(DataLoader(Photographs(6400), batch_size=64))
print(len(names), names[0], certainties.mean().item())
