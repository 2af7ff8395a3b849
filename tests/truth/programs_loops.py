"""Programs for the harness: one small training in loops as people write them."""

from __future__ import annotations

import io
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from tests.truth.program import Batch, Ended, Program, mlp, program, there

_BATCH, _NUM_EVALUATED = 256, 512


class SmallTraining:
    """A network, an optimizer, data on the host, and one step."""

    def __init__(self) -> None:
        self.model, self.batch = mlp(), Batch()
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def loader(self, num_batches: int) -> DataLoader[tuple[Tensor, ...]]:
        """Pairs of one size, on the host."""
        rows = num_batches * _BATCH
        data = TensorDataset(torch.randn(rows, 64, device="cpu"), torch.randn(rows, 32, device="cpu"))
        return DataLoader(data, _BATCH, shuffle=True, generator=torch.Generator(device=there()))

    def step(self, x: Tensor, y: Tensor) -> float:
        """As in a method of a trainer's."""
        x, y = self.batch.of((x.to(there()), y.to(there())))
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def evaluate(self, loader: Iterable[Any]) -> float:
        """The mean loss without gradients."""
        self.model.eval()
        with torch.no_grad():
            losses = [F.mse_loss(self.model(x.to(there())), y.to(there())) for x, y in loader]
        self.model.train()
        return torch.stack(losses).mean().item()


def loop(**properties: Any) -> Callable[[Callable[[SmallTraining, int, Ended], None]], None]:
    """Enter a loop as a program, named `loop_` and its own name."""

    def enter(body: Callable[[SmallTraining, int, Ended], None]) -> None:
        def build() -> Program:
            training = SmallTraining()
            batches = _forever(training.loader(2))
            return Program(
                lambda: training.step(*next(batches)),
                training.model,
                [training.optimizer],
                training.batch,
                loop=partial(body, training),
            )

        build.__name__ = f"loop_{body.__name__}"
        program(**properties)(build)

    return enter


@loop()
def enumerated(job: SmallTraining, num_steps: int, ended: Ended) -> None:
    """All of it in one function, with what a step makes in its variables."""
    model, optimizer, loader = job.model, job.optimizer, job.loader(num_steps)
    for index, (x, y) in enumerate(loader):
        x, y = job.batch.of((x.to(there()), y.to(there())))
        optimizer.zero_grad()
        output = model(x)
        loss = F.mse_loss(output, y)
        loss.backward()
        optimizer.step()
        ended((index, loss.item()))


@loop()
def whole_batch_enumerated(job: SmallTraining, num_steps: int, ended: Ended) -> None:
    for _, batch in enumerate(job.loader(num_steps), start=1):
        ended(job.step(*batch))


@loop(needs=("tqdm",))
def with_progress(job: SmallTraining, num_steps: int, ended: Ended) -> None:
    from tqdm import tqdm  # type: ignore[import-untyped]

    progress = tqdm(enumerate(job.loader(num_steps)), total=num_steps, file=io.StringIO())
    for _, (x, y) in progress:
        loss = job.step(x, y)
        progress.set_postfix(loss=loss)
        ended(loss)


@loop()
def zipped(job: SmallTraining, num_steps: int, ended: Ended) -> None:
    """Of two loaders, as for two domains."""
    for (x, _), (_, y) in zip(job.loader(num_steps), job.loader(num_steps), strict=False):
        ended(job.step(x, y))


@loop()
def enumerated_zip(job: SmallTraining, num_steps: int, ended: Ended) -> None:
    for step, ((x, _), (_, y)) in enumerate(zip(job.loader(num_steps), job.loader(2 * num_steps), strict=False)):
        ended((step, job.step(x, y)))


def _forever(loader: Iterable[Any]) -> Iterator[list[Tensor]]:
    while True:
        for batch in loader:
            yield [tensor.to(there()) for tensor in batch]


@loop()
def batches_of_a_generator(job: SmallTraining, num_steps: int, ended: Ended) -> None:
    for x, y in itertools.islice(_forever(job.loader(2)), num_steps):
        ended(job.step(x, y))


@loop()
def while_there_is_a_next(job: SmallTraining, num_steps: int, ended: Ended) -> None:
    loader, step = job.loader(4), 0
    batches = iter(loader)
    while step < num_steps:
        try:
            x, y = next(batches)
        except StopIteration:
            batches = iter(loader)
            x, y = next(batches)
        ended(job.step(x, y))
        step += 1


@loop()
def next_batch_ahead(job: SmallTraining, num_steps: int, ended: Ended) -> None:
    """The next one is there while this one is trained on."""
    batches = _forever(job.loader(3))
    following = next(batches)
    for _ in range(num_steps):
        x, y = following
        following = next(batches)
        ended(job.step(x, y))


@loop()
def epochs_with_evaluation(job: SmallTraining, num_steps: int, ended: Ended) -> None:
    """After each of them."""
    train, test = job.loader(2), job.loader(1)
    for _epoch in range(num_steps // 2):
        losses, correct = [], 0.0
        for index, (x, y) in enumerate(train):
            losses.append(job.step(x, y))
            if index + 1 == len(train):
                correct = job.evaluate(test)
            ended((losses[-1], correct))


@loop()
def evaluation_in_the_step(job: SmallTraining, num_steps: int, ended: Ended) -> None:
    test = job.loader(2)
    for step, (x, y) in enumerate(job.loader(num_steps)):
        loss = job.step(x, y)
        ended((loss, job.evaluate(test) if step % 2 == 0 else None))


@loop()
def accumulated(job: SmallTraining, num_steps: int, ended: Ended) -> None:
    """Two batches of the loader a step."""
    losses = 0.0
    for index, (x, y) in enumerate(job.loader(2 * num_steps)):
        x, y = job.batch.of((x.to(there()), y.to(there())))
        loss = F.mse_loss(job.model(x), y) / 2
        loss.backward()
        losses += loss.item()
        if (index + 1) % 2 == 0:
            job.optimizer.step()
            job.optimizer.zero_grad(set_to_none=True)
            ended(losses)


class _CallingTrainer:
    """As libraries have one: callbacks that are called with all that a step has made."""

    def __init__(self, job: SmallTraining, callbacks: list[Callable[[Any], object]]) -> None:
        self.job, self.callbacks = job, callbacks
        self.state: dict[str, Any] = {}

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        x, y = self.job.batch.of([tensor.to(there()) for tensor in batch])
        output = self.job.model(x)
        self.state = {"index": index, "output": output.detach(), "batch": (x, y)}
        return F.mse_loss(output, y)

    def fit(self, loader: Iterable[list[Tensor]]) -> None:
        for index, batch in enumerate(loader):
            loss = self.training_step(batch, index)
            self.job.optimizer.zero_grad()
            loss.backward()
            self.job.optimizer.step()
            self.state["loss"] = loss.detach()
            for callback in self.callbacks:
                callback(self)


@loop()
def callbacks_of_a_trainer(job: SmallTraining, num_steps: int, ended: Ended) -> None:
    means: list[float] = []
    trainer = _CallingTrainer(
        job,
        [
            lambda trainer: means.append(trainer.state["output"].mean().item()),
            lambda trainer: ended((trainer.state["loss"], means[-1])),
        ],
    )
    trainer.fit(job.loader(num_steps))  # type: ignore[arg-type]


@loop()
def mapped(job: SmallTraining, num_steps: int, ended: Ended) -> None:
    """Without a statement of its own: consumed by C."""

    def train_on(batch: tuple[Tensor, ...]) -> None:
        ended(job.step(*batch))

    deque(map(train_on, job.loader(num_steps)), maxlen=0)


@loop()
def comprehension(job: SmallTraining, num_steps: int, ended: Ended) -> None:
    def train_on(x: Tensor, y: Tensor) -> float:
        loss = job.step(x, y)
        ended(loss)
        return loss

    sum([train_on(x, y) for x, y in job.loader(num_steps)])


@loop()
def loop_in_a_generator(job: SmallTraining, num_steps: int, ended: Ended) -> None:
    """Whoever asks for the next loss has the step done."""

    def training() -> Iterator[float]:
        for x, y in job.loader(num_steps):
            x, y = job.batch.of((x.to(there()), y.to(there())))
            loss = F.mse_loss(job.model(x), y)
            job.optimizer.zero_grad()
            loss.backward()
            job.optimizer.step()
            yield loss.item()

    for loss in training():
        ended(loss)


class _OwnBatches:
    """An iterator of one's own, of dictionaries."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._batches, self.last = iter(loader), dict[str, Tensor]()

    def __iter__(self) -> _OwnBatches:
        return self

    def __next__(self) -> dict[str, Tensor]:
        self.last = dict(zip(("inputs", "labels"), next(self._batches), strict=True))
        return self.last


@loop()
def dictionaries_of_an_iterator(job: SmallTraining, num_steps: int, ended: Ended) -> None:
    for batch in _OwnBatches(job.loader(num_steps)):
        batch = {name: tensor.to(there()) for name, tensor in batch.items()}
        ended(job.step(batch["inputs"], batch["labels"]))


@loop()
def list_of_batches(job: SmallTraining, num_steps: int, ended: Ended) -> None:
    """All of them are there before the first step, where the model is."""
    for i, (x, y) in enumerate([(x.to(there()), y.to(there())) for x, y in job.loader(num_steps)]):
        ended((i, job.step(x, y)))


@loop()
def best_model_kept(job: SmallTraining, num_steps: int, ended: Ended) -> None:
    """In an inner `try`, with the variables of an evaluation left over in the function."""
    best, lowest = None, float("inf")
    batches, x, y = iter(job.loader(num_steps)), None, None
    try:
        while True:
            x, y = next(batches)
            loss = job.step(x, y)
            if loss < lowest:
                best, lowest = {name: value.clone() for name, value in job.model.state_dict().items()}, loss
            ended(loss)
    except StopIteration:
        pass
    assert best is not None


@loop(is_one_step=True)
def one_step(job: SmallTraining, num_steps: int, ended: Ended) -> None:
    for i, (x, y) in enumerate(job.loader(num_steps)):
        ended((i, job.step(x, y)))
