# ContinualAI/avalanche#1075; h100:3GiB
"""Classes of pictures are learned in two experiences; exemplars of each class, nearest to its mean, are kept for later."""

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet18


class Pictures(Dataset):
    def __init__(self, number, label):
        self.number, self.label = number, label

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        return torch.zeros(3, 128, 128), self.label


class Model(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.feature_extractor = resnet18()
        self.feature_extractor.fc = nn.Identity()
        self.classifier = nn.Linear(512, classes)

    def forward(self, x):
        return self.classifier(self.feature_extractor(x))


class ICaRL:
    def __init__(self, model, memory_size, train_mb_size=32, eval_mb_size=64, device="cuda"):
        self.model, self.memory_size, self.device = model.to(device), memory_size, device
        self.train_mb_size, self.eval_mb_size = train_mb_size, eval_mb_size
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        self.x_memory, self.order = [], []

    def train(self, experience, steps=2):
        self.model.train()
        for dataset in experience:
            loader = DataLoader(dataset, batch_size=self.train_mb_size)
            for _, (x, y) in zip(range(steps), loader):
                loss = F.cross_entropy(self.model(x.to(self.device)), y.to(self.device))
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
        self.construct_exemplar_set(experience)

    def construct_exemplar_set(self, experience):
        self.model.eval()
        nb_protos = self.memory_size // (len(self.x_memory) + len(experience))
        for dataset in experience:
            class_patterns, _ = next(iter(DataLoader(dataset, batch_size=len(dataset))))
            class_patterns = class_patterns.to(self.device)
            with torch.no_grad():
                mapped_prototypes = self.model.feature_extractor(class_patterns).detach()
            D = F.normalize(mapped_prototypes.T, dim=0)
            mean = D.mean(dim=1)
            nearest = (mean[:, None] - D).norm(dim=0).argsort()[:nb_protos]
            self.x_memory.append(class_patterns[nearest].cpu())
            self.order.append(dataset.label)


strategy = ICaRL(Model(classes=4), memory_size=400)
for number in range(2):
    strategy.train([Pictures(1300, 2 * number), Pictures(1300, 2 * number + 1)])
    print(number, [tuple(memory.shape) for memory in strategy.x_memory])
