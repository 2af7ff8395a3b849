"""Programs for the harness: several threads and processes, and other people's libraries."""

from __future__ import annotations

import copy
import hashlib
import io
import itertools
import os
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.truth.program import Batch, Program, descend, mlp, program, there

# ---- whole models in files, and processes of its own -----------------------------------------------------------------


@program()
def whole_models_saved() -> Program:
    """In every way in which a model, an optimizer or a copy gets into a file, from inside a step."""
    model, batch = mlp(), Batch()
    optimizer = torch.optim.Adam(model.parameters())

    def digest(value: object) -> str:
        file = io.BytesIO()
        torch.save(value, file)
        return hashlib.sha256(file.getvalue()).hexdigest()

    def step() -> tuple[Tensor, str, str, str, int]:
        x = batch.of(torch.randn(256, 64))
        loss = model(x).square().mean()
        loss.backward()
        files = [digest(model), digest(optimizer.state_dict()), hashlib.sha256(pickle.dumps(optimizer)).hexdigest()]
        again = pickle.loads(pickle.dumps(copy.deepcopy(model)))
        num_hooks = sum(len(list(module._forward_pre_hooks.items())) for module in again.modules())
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach(), files[0], files[1], files[2], num_hooks

    return Program(step, model, [optimizer], batch)


@program()
def average_copied_in_a_step() -> Program:
    """An average of the weights, by a deep copy of the model in each step, which is called as a model too."""
    model, batch = mlp(), Batch()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    average = copy.deepcopy(model).requires_grad_(False)

    def step() -> Tensor:
        x = batch.of(torch.randn(256, 64))
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        new = copy.deepcopy(model)
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), new.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
            return new(x).square().mean()

    return Program(step, model, [optimizer], batch, {"average": average})


@program()
def forks_in_steps() -> Program:
    """A child computes with what it has of its parent's, and ends; what it finds is told by its status.

    No matrices: the threads that multiply them are the parent's.
    """
    model, batch = mlp(), Batch()
    optimizer = torch.optim.Adam(model.parameters())

    def train() -> Tensor:
        return descend(model(batch.of(torch.randn(256, 64))).square().mean(), optimizer)

    def child() -> int:
        return 3 + int(torch.ones(3).requires_grad_().add(1).sum() == 6)

    def step() -> tuple[Tensor, int]:
        loss = train()
        if (pid := os.fork()) == 0:
            status = 1
            try:
                status = child()
            finally:
                os._exit(status)
        return loss, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    return Program(step, model, [optimizer], batch)


# ---- threads ---------------------------------------------------------------------------------------------------------


@program(threads=True, chance_bytes=256 * 256 * 4)
def forward_in_a_thread_pool() -> Program:
    # Of one block, of 256 KiB, the kind is found in most runs and not in all: torch records no other threads.
    # One worker, and one call after the other: the order of two at once would be chance, and with it the peak.
    model, pool, batch = mlp(), ThreadPoolExecutor(1), Batch()
    optimizer = torch.optim.Adam(model.parameters())

    def forward(half: Tensor) -> Tensor:
        output: Tensor = pool.submit(model, half).result()
        pool.submit(int).result()  # by then the worker has let go of the call before
        return output

    def step() -> Tensor:
        halves = batch.of([torch.randn(256, 64) for _ in range(2)])
        outputs = [forward(half) for half in halves]
        return descend(torch.stack([output.square().mean() for output in outputs]).sum(), optimizer)

    return Program(step, model, [optimizer], batch, held=pool)


@program(threads=True)
def replicas_in_threads() -> Program:
    """As data parallelism does on several devices: a replica, a thread and a part of the batch for each."""
    model, batch = mlp(), Batch()
    replica = copy.deepcopy(model)
    optimizer = torch.optim.SGD([*model.parameters(), *replica.parameters()], 0.1)

    def step() -> Tensor:
        parts, losses = batch.of([torch.randn(256, 64) for _ in range(2)]), dict[int, Tensor]()

        def work(number: int, module: nn.Module) -> None:
            losses[number] = module(parts[number]).square().mean()

        for number, module in enumerate((model, replica)):
            thread = threading.Thread(target=work, args=(number, module))
            thread.start()
            thread.join()
        return descend(losses[0] + losses[1], optimizer)

    return Program(step, model, [optimizer], batch, {"replica": replica})


@program(threads=True)
def batches_made_in_a_thread() -> Program:
    """A thread prepares the next batch before this one is trained on."""
    model, batch, pool = mlp(), Batch(), ThreadPoolExecutor(1)
    optimizer = torch.optim.Adam(model.parameters())
    makes = torch.Generator().manual_seed(0)

    def make() -> Tensor:
        return F.normalize(torch.randn(512, 64, generator=makes))

    waiting = [pool.submit(make)]

    def step() -> Tensor:
        x = batch.of(waiting.pop().result().to(there()))
        waiting.append(pool.submit(make))
        waiting[0].exception()  # what it makes while others compute, and with it the peak, would be chance
        return descend(model(x).square().mean(), optimizer)

    return Program(step, model, [optimizer], batch, held=pool)


# ---- data loaders ----------------------------------------------------------------------------------------------------


def _loader(num_workers: int) -> DataLoader[tuple[Tensor, ...]]:
    data = TensorDataset(torch.randn(4000, 64, device="cpu"), torch.randn(4000, 32, device="cpu"))
    shuffles = torch.Generator(device=there())
    return DataLoader(data, 400, num_workers=num_workers, shuffle=True, generator=shuffles)


def _loaded(num_workers: int) -> Program:
    model, batch, loader = mlp(), Batch(), _loader(num_workers)
    optimizer = torch.optim.Adam(model.parameters())
    batches: Iterator[list[Tensor]] = itertools.chain.from_iterable(itertools.repeat(loader))  # type: ignore[arg-type]

    def step() -> Tensor:
        x, y = batch.of([tensor.to(there()) for tensor in next(batches)])
        return descend(F.mse_loss(model(x), y), optimizer)

    return Program(step, model, [optimizer], batch, held=batches)


@program()
def data_loader() -> Program:
    return _loaded(0)


# Whether a worker's batch comes before its turn, and waits, is chance.
@program(chance_bytes=400 * (64 + 32) * 4)
def data_loader_with_workers() -> Program:
    """Batches come in shared memory, which torch's allocator never hears of."""
    return _loaded(2)


# ---- other people's libraries ----------------------------------------------------------------------------------------


@program(needs=("transformers",))
def library_generate() -> Program:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=100, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=256, eos_token_id=None, bos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    model, batch = LlamaForCausalLM(config).eval(), Batch()

    def step() -> Tensor:
        tokens = batch.of(torch.randint(2, 100, (8, 64)))
        made: Tensor = model.generate(tokens, max_new_tokens=4, do_sample=False)  # type: ignore[operator]
        return made

    return Program(step, model, [], batch)


@program(needs=("transformers",))
def library_t5() -> Program:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(  # type: ignore[call-arg]
        vocab_size=100, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    model, batch = T5ForConditionalGeneration(config), Batch()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> Tensor:
        source, target = batch.of((torch.randint(1, 100, (8, 24)), torch.randint(1, 100, (8, 12))))
        loss: Tensor = model(input_ids=source, labels=target).loss
        return descend(loss, optimizer)

    return Program(step, model, [optimizer], batch)


@program(needs=("torchvision",))
def library_resnet() -> Program:
    from torchvision.models import resnet18

    model, batch = resnet18(num_classes=10), Batch()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    def step() -> Tensor:
        x, y = batch.of((torch.randn(2, 3, 32, 32), torch.randint(0, 10, (2,))))
        return descend(F.cross_entropy(model(x), y), optimizer)

    return Program(step, model, [optimizer], batch)
