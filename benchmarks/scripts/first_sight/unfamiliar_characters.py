# facebookresearch/higher#48; h100:3GiB
"""Meta-trains an image classifier for few-shot tasks by differentiable inner steps, and adapts it to tasks of a test set."""

from contextlib import contextmanager

import torch
from torch import nn
from torch.func import functional_call
from torchvision.models import resnet18


class Tasks:
    def __init__(self, tasks, ways=5, shots=5, queries=5, size=84):
        self.tasks, self.ways, self.size = tasks, ways, size
        self.shots, self.queries = shots, queries

    def sample(self, per_class, device):
        labels = torch.arange(self.ways).repeat_interleave(per_class)
        return torch.rand(len(labels), 3, self.size, self.size).to(device), labels.to(device)

    def __iter__(self):
        for _ in range(self.tasks):
            yield self.sample(self.shots, "cuda"), self.sample(self.queries, "cuda")


class FunctionalModule:
    """A stateless version of a module, called with its latest fast parameters."""

    def __init__(self, module, copy_initial_weights):
        self.module = module
        self.names = [name for name, _ in module.named_parameters()]
        self._fast_params = []
        initial = list(module.parameters())
        if copy_initial_weights:
            initial = [p.detach().clone().requires_grad_() for p in initial]
        self.update_params(initial)

    def update_params(self, params):
        self._fast_params.append(list(params))

    def parameters(self, time=-1):
        return self._fast_params[time]

    def __call__(self, x):
        return functional_call(self.module, dict(zip(self.names, self.parameters())), (x,))


class DifferentiableSGD:
    def __init__(self, fmodule, lr, track_higher_grads):
        self.fmodule, self.lr, self.track_higher_grads = fmodule, lr, track_higher_grads

    def step(self, loss):
        params = self.fmodule.parameters()
        grads = torch.autograd.grad(loss, params, create_graph=self.track_higher_grads)
        new_params = [p - self.lr * g for p, g in zip(params, grads)]
        if not self.track_higher_grads:
            new_params = [p.detach().requires_grad_() for p in new_params]
        self.fmodule.update_params(new_params)


@contextmanager
def innerloop_ctx(model, lr, copy_initial_weights=True, track_higher_grads=True):
    fmodule = FunctionalModule(model, copy_initial_weights)
    yield fmodule, DifferentiableSGD(fmodule, lr, track_higher_grads)


def train(model, tasks, optimizer, inner_steps=2):
    model.train()
    for (support, support_labels), (query, query_labels) in tasks:
        optimizer.zero_grad()
        with innerloop_ctx(model, 0.01, copy_initial_weights=False) as (fmodule, inner):
            for _ in range(inner_steps):
                inner.step(nn.functional.cross_entropy(fmodule(support), support_labels))
            loss = nn.functional.cross_entropy(fmodule(query), query_labels)
            loss.backward()
        optimizer.step()
        print(f"meta loss {loss.item():.3f}")


def test(model, tasks, inner_steps=75):
    model.train()
    accuracies = []
    for (support, support_labels), (query, query_labels) in tasks:
        with innerloop_ctx(model, 0.01, track_higher_grads=False) as (fmodule, inner):
            for _ in range(inner_steps):
                inner.step(nn.functional.cross_entropy(fmodule(support), support_labels))
            with torch.no_grad():
                accuracies.append((fmodule(query).argmax(1) == query_labels).float().mean().item())
    return sum(accuracies) / len(accuracies)


model = resnet18(num_classes=5).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
train(model, Tasks(3), optimizer)
print(f"accuracy {test(model, Tasks(2)):.3f}")
