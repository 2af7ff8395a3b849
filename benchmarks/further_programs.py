"""Programs that the harness does not have, for `benchmarks.cut_recordings --further`: one function each.

Each is a training, or a generation, as people write it, of another kind than the others. They are larger than the
harness's, so that workspaces are not most of their bytes.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from tests.truth.program import Batch, Program, supervised

WIDTH, SIZE = 1024, 2048


class Block(nn.Module):
    """Attention and a network of two layers, with residuals."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, cache: list[Tensor] | None = None) -> Tensor:
        """Keys and values of a cache come before, and it gets these."""
        b, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, length, 3, 8, width // 8).permute(2, 0, 3, 1, 4)
        if cache is not None:
            if cache:
                k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
            cache[:] = [k, v]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
        x = x + self.out(y.transpose(1, 2).reshape(b, length, width))
        result: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return result


class Words(nn.Module):
    """A language model."""

    def __init__(self, *, num_blocks: int = 3, width: int = 512, vocabulary: int = 8000, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(num_blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, caches: list[list[Tensor]] | None = None) -> Tensor:
        """The logits of every place."""
        x = self.embedding(tokens)
        for place, block in enumerate(self.blocks):
            x = block(x, caches[place] if caches is not None else None)
        logits: Tensor = self.head(self.norm(x))
        return logits


def net(
    inputs: int = WIDTH, hidden: int = 2048, outputs: int = WIDTH, *, last: nn.Module | None = None
) -> nn.Sequential:
    """Three layers."""
    layers = [nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)]
    return nn.Sequential(*layers, *([last] if last is not None else []))


def of_words(logits: Tensor, tokens: Tensor) -> Tensor:
    """The loss of the next word."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def tokens_of(size: int = 8, length: int = 256) -> Tensor:
    """Any words."""
    return torch.randint(8000, (size, length))


def _on_words(model: nn.Module, optimizer: torch.optim.Optimizer) -> Program:
    """Usual steps of a language model."""

    def two() -> tuple[Tensor, Tensor]:
        tokens = tokens_of()
        return tokens, tokens

    return supervised(model, optimizer, two, lambda logits, tokens: of_words(logits.float(), tokens))


def buffers_replaced_in_forward() -> Program:
    """A layer keeps a mean of its inputs and its latest scores as buffers, anew in every forward."""

    class Remembers(nn.Module):
        cache: Tensor
        mean: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.register_buffer("cache", torch.zeros(SIZE, WIDTH))
            self.register_buffer("mean", torch.zeros(WIDTH, WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            h = F.gelu(self.first(x))
            self.cache = h.detach() * 0.5
            self.mean = 0.9 * self.mean + 0.1 * (h.detach().T @ h.detach())
            result: Tensor = self.second(h)
            return result

    model = nn.Sequential(Remembers(), nn.ReLU(), Remembers(), nn.Linear(WIDTH, 64))
    optimizer = torch.optim.AdamW(model.parameters())

    return supervised(model, optimizer, lambda: (x := torch.randn(SIZE, WIDTH), x), lambda y, _: y.square().mean())


def meta_learning() -> Program:
    """Two inner steps on copies of the weights, and the outer gradient through them."""
    model, batch = net(512, 1024, 512), Batch()
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> Tensor:
        x, y = batch.of((torch.randn(256, 512), torch.randn(256, 512)))
        fast: dict[str, Tensor] = dict(model.named_parameters())
        for _ in range(2):
            inner = F.mse_loss(functional_call(model, fast, (x,)), y)
            slopes = torch.autograd.grad(inner, tuple(fast.values()), create_graph=True)
            fast = {name: value - 0.01 * slope for (name, value), slope in zip(fast.items(), slopes, strict=True)}
        loss = F.mse_loss(functional_call(model, fast, (y,)), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Program(step, model, [optimizer], batch)


def adversarial() -> Program:
    """A generator and a discriminator, with a step each."""
    generator, judge, batch = net(256, 1024, WIDTH, last=nn.Tanh()), net(WIDTH, 1024, 1), Batch()
    of_generator = torch.optim.Adam(generator.parameters(), betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), betas=(0.5, 0.999))

    def step() -> Tensor:
        real = batch.of(torch.randn(SIZE, WIDTH))
        noise = batch.and_of(torch.randn(SIZE, 256))
        fake = generator(noise)
        of_judge.zero_grad()
        loss = F.softplus(-judge(real)).mean() + F.softplus(judge(fake.detach())).mean()
        loss.backward()
        of_judge.step()
        of_generator.zero_grad()
        fooled = F.softplus(-judge(fake)).mean()
        fooled.backward()
        of_generator.step()
        return loss.detach()

    return Program(step, generator, [of_generator, of_judge], batch, {"judge": judge})


def q_learning() -> Program:
    """Batches from a memory on the device; a target network follows slowly."""
    model, batch = net(256, 1024, 64), Batch()
    target = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters())
    memory = torch.zeros(20_000, 256)

    def step() -> Tensor:
        with torch.no_grad():
            action = model(torch.randn(1, 256)).argmax(1)
        memory[0] = torch.randn(256)
        place = torch.randint(20_000, (SIZE,))
        states, following = batch.of((memory[place], memory[place]))
        with torch.no_grad():
            wanted = 1.0 + 0.99 * target(following).max(1).values
        loss = F.smooth_l1_loss(model(states)[:, 0], wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.01)
        return action

    return Program(step, model, [optimizer], batch, {"target": target}, held=memory)


def average_by_hand() -> Program:
    """A moving average of the weights as a dict of clones, replaced in every step."""
    model, batch = Words(), Batch()
    optimizer = torch.optim.AdamW(model.parameters())
    average = {name: value.detach().clone() for name, value in model.named_parameters()}

    def step() -> Tensor:
        tokens = batch.of(tokens_of())
        loss = of_words(model(tokens), tokens)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for name, value in model.named_parameters():
                average[name] = average[name] * 0.99 + value * 0.01
        return loss.detach()

    return Program(step, model, [optimizer], batch, held=average)


def contrast_with_a_queue() -> Program:
    """MoCo: a queue of keys as a buffer, and a momentum encoder."""

    class Contrast(nn.Module):
        queue: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.query, self.key = net(outputs=256), net(outputs=256)
            self.key.load_state_dict(self.query.state_dict())
            self.key.requires_grad_(False)
            self.register_buffer("queue", F.normalize(torch.randn(256, 16384), dim=0))

        def forward(self, one: Tensor, other: Tensor) -> Tensor:
            q = F.normalize(self.query(one), dim=1)
            with torch.no_grad():
                for slow, fast in zip(self.key.parameters(), self.query.parameters(), strict=True):
                    slow.data = slow.data * 0.999 + fast.data * 0.001
                k = F.normalize(self.key(other), dim=1)
            positive, negative = (q * k).sum(1, keepdim=True), q @ self.queue.clone().detach()
            logits = torch.cat([positive, negative], 1) / 0.07
            with torch.no_grad():
                self.queue[:, : k.shape[0]] = k.T
            return logits

    model, batch = Contrast(), Batch()
    optimizer = torch.optim.SGD(model.query.parameters(), lr=0.03, momentum=0.9)

    def step() -> Tensor:
        one, other = batch.of((torch.randn(512, WIDTH), torch.randn(512, WIDTH)))
        logits = model(one, other)
        loss = F.cross_entropy(logits, batch.and_of(torch.zeros(512, dtype=torch.long)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Program(step, model, [optimizer], batch)


def distillation() -> Program:
    """A large frozen teacher and a small student."""
    teacher, student, batch = Words(num_blocks=4).eval(), Words(num_blocks=1), Batch()
    optimizer = torch.optim.AdamW(student.parameters())

    def step() -> Tensor:
        tokens = batch.of(tokens_of())
        with torch.no_grad():
            wanted = teacher(tokens)
        logits = student(tokens)
        loss = F.kl_div(F.log_softmax(logits / 2, -1), F.softmax(wanted / 2, -1), reduction="batchmean")
        loss = loss + of_words(logits, tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Program(step, student, [optimizer], batch, {"teacher": teacher})


def generation_with_a_cache() -> Program:
    """A prompt, then a word at a time, with keys and values concatenated."""
    model, batch = Words().half().eval(), Batch()

    @torch.inference_mode()
    def step() -> Tensor:
        caches: list[list[Tensor]] = [[] for _ in model.blocks]
        words = batch.of(tokens_of(16, 512))
        for _ in range(12):
            word = model(words, caches)[:, -1].argmax(-1, keepdim=True)
            words = batch.of(word)
        return words

    return Program(step, model, [], batch)


def truncated_recurrence() -> Program:
    """A state that goes from step to step, detached."""
    embedding, layers, head = nn.Embedding(8000, 512), nn.LSTM(512, 1024, 2, batch_first=True), nn.Linear(1024, 8000)
    model, batch = nn.ModuleList([embedding, layers, head]), Batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    state: list[Tensor] = []

    def step() -> Tensor:
        tokens = batch.of(tokens_of(32, 35))
        y, (h, c) = layers(embedding(tokens), tuple(state) or None)
        state[:] = [h.detach(), c.detach()]
        loss = of_words(head(y), tokens)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        return loss.detach()

    return Program(step, model, [optimizer], batch, held=state)


def gradient_penalty() -> Program:
    """WGAN-GP's critic: a backward through the gradient of a mixture."""
    critic, batch = net(WIDTH, 1024, 1), Batch()
    optimizer = torch.optim.Adam(critic.parameters())

    def step() -> Tensor:
        real, fake = batch.of((torch.randn(SIZE, WIDTH), torch.randn(SIZE, WIDTH)))
        share = torch.rand(SIZE, 1)
        mixed = batch.and_of((share * real + (1 - share) * fake).requires_grad_())
        scores = critic(mixed)
        (slope,) = torch.autograd.grad(scores.sum(), mixed, create_graph=True)
        penalty = (slope.norm(2, dim=1) - 1).square().mean()
        loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Program(step, critic, [optimizer], batch)


def gradients_never_zeroed() -> Program:
    """Gradients are summed from step to step, as where zero_grad was forgotten."""
    model, batch = Words(num_blocks=2), Batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> Tensor:
        for _ in range(3):
            tokens = batch.of(tokens_of(4))
            loss = of_words(model(tokens), tokens) / 3
            loss.backward()
        optimizer.step()
        return loss.detach()

    return Program(step, model, [optimizer], batch)


def an_optimizer_for_each_part() -> Program:
    """SGD for the embedding, AdamW for what is of two dimensions, Adagrad for the rest."""
    model, batch = Words(num_blocks=2), Batch()
    blocks = list(model.blocks.parameters())
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.SGD(model.embedding.parameters(), lr=0.1, momentum=0.9),
        torch.optim.AdamW([one for one in blocks if one.ndim > 1]),
        torch.optim.Adagrad([one for one in blocks if one.ndim < 2]),
        torch.optim.RMSprop(model.head.parameters()),
    ]

    def step() -> Tensor:
        tokens = batch.of(tokens_of())
        loss = of_words(model(tokens), tokens)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return Program(step, model, optimizers, batch)


def resumed_from_a_checkpoint() -> Program:
    """Weights and the optimizer's state are loaded before the first step."""
    with torch.device("cpu"):
        earlier = Words()
        before = torch.optim.AdamW(earlier.parameters())
        for one in earlier.parameters():
            one.grad = torch.zeros_like(one)
        before.step()
    saved, states = earlier.state_dict(), before.state_dict()
    model, batch = Words(), Batch()
    model.load_state_dict(saved)
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.load_state_dict(states)

    def step() -> Tensor:
        tokens = batch.of(tokens_of())
        loss = of_words(model(tokens), tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Program(step, model, [optimizer], batch)


def adapters() -> Program:
    """LoRA on every linear layer of a frozen model in bfloat16."""

    class Adapted(nn.Module):
        def __init__(self, layer: nn.Linear, rank: int = 16) -> None:
            super().__init__()
            self.layer = layer
            self.a = nn.Parameter(torch.randn(rank, layer.in_features, dtype=torch.bfloat16))
            self.b = nn.Parameter(torch.zeros(layer.out_features, rank, dtype=torch.bfloat16))

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.layer(x) + F.dropout(x, 0.05) @ self.a.T @ self.b.T
            return result

    model = Words().to(torch.bfloat16).requires_grad_(False)
    for block in model.blocks:
        for name, layer in list(block.named_children()):
            if isinstance(layer, nn.Linear):
                setattr(block, name, Adapted(layer))
    optimizer = torch.optim.AdamW(one for one in model.parameters() if one.requires_grad)

    return _on_words(model, optimizer)


def tied_weights() -> Program:
    """The embedding is the head."""
    model = Words(tied=True)
    optimizer = torch.optim.AdamW(model.parameters())

    return _on_words(model, optimizer)


def quantised_weights() -> Program:
    """Weights of 8 bits as buffers, dequantised in each call; a head is trained."""

    class Quantised(nn.Module):
        weight: Tensor
        scale: Tensor

        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.register_buffer("weight", torch.randint(-128, 127, (outputs, inputs), dtype=torch.int8))
            self.register_buffer("scale", torch.ones(outputs, 1))

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weight.to(x.dtype) * self.scale)

    layers = [layer for _ in range(4) for layer in (Quantised(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU())]
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *layers, nn.Linear(WIDTH, 64))
    optimizer = torch.optim.AdamW(one for one in model.parameters() if one.requires_grad)

    return supervised(model, optimizer, lambda: (x := torch.randn(SIZE, WIDTH), x), lambda y, _: y.square().mean())


def data_parallel_words() -> Program:
    """DDP, rank 0 of four."""
    from tests.truth.programs_jobs import _start

    _start()
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
    model = nn.parallel.DistributedDataParallel(Words(num_blocks=2))
    optimizer = torch.optim.AdamW(model.parameters())

    return _on_words(model, optimizer)


def policy_gradient() -> Program:
    """Outputs of a rollout without gradients are kept, and trained on in parts, several times over."""
    model, batch = net(256, 1024, 65), Batch()
    optimizer = torch.optim.Adam(model.parameters(), eps=1e-5)
    num, parts = 64, 4

    def step() -> Tensor:
        seen = torch.zeros(num, 128, 256)
        before, values = torch.zeros(num, 128), torch.zeros(num, 128)
        state = torch.randn(128, 256)
        with torch.no_grad():
            for at in range(num):
                seen[at] = state
                y = model(state)
                values[at], before[at] = y[:, 64], y[:, :64].log_softmax(-1)[:, 0]
                state = torch.randn(128, 256)
            gains = torch.randn(num, 128) - values
        flat = seen.flatten(0, 1)
        for _ in range(2):
            for place in torch.randperm(num * 128).chunk(parts):
                y = model(batch.of(flat[place]))
                ratio = (y[:, :64].log_softmax(-1)[:, 0] - before.flatten()[place]).exp()
                gain = gains.flatten()[place]
                loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean() + y[:, 64].square().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
        return loss.detach()

    return Program(step, model, [optimizer], batch)


def scaled_convolutions() -> Program:
    """A convolutional network in half precision with a GradScaler, and torch's own average of its weights."""

    def block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
        convolution = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))

    blocks = [block(3, 64, 2), block(64, 128, 2), block(128, 256, 2), block(256, 512, 2), block(512, 512, 1)]
    model, batch = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)), Batch()
    average = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    scaler = torch.amp.GradScaler("cuda")

    def step() -> Tensor:
        x, y = batch.of((torch.randn(64, 3, 128, 128), torch.randint(1000, (64,))))
        with torch.autocast("cuda", torch.float16):
            loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        average.update_parameters(model)
        return loss.detach()

    return Program(step, model, [optimizer], batch, {"average": average}, held=scaler)


def _of_words_on(limit: Callable[[], None], size: int, after: Callable[[nn.Module, Batch], None]) -> Program:
    """Steps of a language model, where something else takes memory before the second backward."""
    model, batch = Words(), Batch()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> Tensor:
        tokens = batch.of(tokens_of(size))
        loss = of_words(model(tokens), tokens)
        limit()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        after(model, batch)
        return loss.detach()

    return Program(step, model, [optimizer], batch)


def _leave(more: int) -> None:
    """So many bytes of the GPU beyond what is reserved."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + more) / total)


def _nothing(*_: object) -> None:
    pass


def checkpointed_blocks() -> Program:
    """Backward runs each block again."""
    model, batch = Words(vocabulary=512), Batch()
    for block in model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=True)  # type: ignore[method-assign]
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> Tensor:
        tokens = batch.of(torch.randint(512, (16, 256)))
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Program(step, model, [optimizer], batch)


class _Momentum(torch.optim.Optimizer):
    """Momentum by hand: a new tensor replaces that of each parameter."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["momentum"] = 0.9 * state.get("momentum", 0) + parameter.grad
                parameter.data = parameter.data - 1e-3 * state["momentum"]


def optimizer_by_hand() -> Program:
    """Assigns to .data in the optimizer, and to .grad in the loop."""
    model, batch = Words(), Batch()
    optimizer = _Momentum(model.parameters(), {})

    def step() -> Tensor:
        tokens = batch.of(tokens_of(8))
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        for parameter in model.parameters():
            parameter.grad = None
        return loss.detach()

    return Program(step, model, [optimizer], batch)


def out_of_memory_in_backward() -> Program:
    """Have less memory in the second step than in the first."""
    calls = iter((_nothing, lambda: (torch.cuda.empty_cache(), _leave(96 << 20))))
    return _of_words_on(lambda: next(calls)() and None, 8, _nothing)


def out_of_memory_in_the_first_step() -> Program:
    """Fails for lack of memory for the optimizer's state."""
    return _of_words_on(lambda: _leave(120 << 20), 1, _nothing)


def out_of_memory_in_evaluation() -> Program:
    """Evaluation keeps its outputs."""

    @torch.no_grad()
    def evaluate(model: nn.Module, batch: Batch) -> None:
        _leave(3 << 30)
        model.eval()
        kept = []
        for _ in range(100):
            kept.append(model(batch.of(tokens_of(64))))

    return _of_words_on(_nothing, 8, evaluate)


PROGRAMS: dict[str, Callable[[], Program]] = {
    name: build
    for name, build in vars(sys.modules[__name__]).items()
    if inspect.isfunction(build) and not name.startswith("_") and build.__annotations__ == {"return": "Program"}
}
