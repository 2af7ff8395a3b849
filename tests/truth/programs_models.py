"""Programs for the harness: models of many families, each with its own way to use memory."""

from __future__ import annotations

import copy
import math
from collections import deque
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.truth.program import Batch, Program, descend, mlp, program, supervised

# ---- pictures --------------------------------------------------------------------------------------------------------


class _Denoiser(nn.Module):
    """Down, middle, up, with a skip connection and the time as an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 32))
        self.enter = nn.Conv2d(3, 16, 3, padding=1)
        self.down = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(8, 32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.up = nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1)
        self.leave = nn.Conv2d(32, 3, 3, padding=1)

    def forward(self, noisy: Tensor, when: Tensor) -> Tensor:
        frequencies = torch.exp(-math.log(10_000) * torch.arange(16) / 16)
        angles = when[:, None] * frequencies
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        high = F.silu(self.enter(noisy))
        low = F.silu(self.norm(self.down(high)) + time[:, :, None, None])
        flat = low.flatten(2).transpose(1, 2)
        low = low + self.attention(flat, flat, flat, need_weights=False)[0].transpose(1, 2).view_as(low)
        return self.leave(torch.cat([self.up(low), high], 1))


@program()
def diffusion_unet() -> Program:
    model = _Denoiser()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    noise_levels = torch.linspace(1e-4, 0.02, 100)
    alphas = (1 - noise_levels).cumprod(0)
    batch = Batch()

    def step() -> Tensor:
        images = batch.of(torch.randn(8, 3, 16, 16))
        when = torch.randint(0, 100, (8,))
        noise = torch.randn_like(images)
        a = alphas[when][:, None, None, None]
        noisy = a.sqrt() * images + (1 - a).sqrt() * noise
        loss = F.mse_loss(model(noisy, when), noise)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Program(step, model, [optimizer], batch)


@program()
def gan_two_optimizers() -> Program:
    generator, discriminator = mlp(16, 128, 64), mlp(64, 128, 1)
    of_generator = torch.optim.Adam(generator.parameters(), betas=(0.5, 0.999))
    of_discriminator = torch.optim.Adam(discriminator.parameters(), betas=(0.5, 0.999))
    model = nn.ModuleDict({"generator": generator, "discriminator": discriminator})
    batch = Batch()

    def step() -> tuple[Tensor, Tensor]:
        real = batch.of(torch.randn(256, 64))
        fake = generator(torch.randn(256, 16))
        d_loss = F.softplus(-discriminator(real)).mean() + F.softplus(discriminator(fake.detach())).mean()
        of_discriminator.zero_grad()
        d_loss.backward()
        of_discriminator.step()
        g_loss = F.softplus(-discriminator(fake)).mean()
        of_generator.zero_grad()
        g_loss.backward()
        of_generator.step()
        return d_loss.detach(), g_loss.detach()

    return Program(step, model, [of_discriminator, of_generator], batch)


@program()
def gradient_penalty_double_backward() -> Program:
    critic = nn.Sequential(nn.Linear(64, 256), nn.Softplus(), nn.Linear(256, 256), nn.Softplus(), nn.Linear(256, 1))
    optimizer = torch.optim.Adam(critic.parameters())
    batch = Batch()

    def step() -> Tensor:
        x = batch.of(torch.randn(256, 64, requires_grad=True))
        scores = critic(x)
        (slope,) = torch.autograd.grad(scores.sum(), x, create_graph=True)
        penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
        return descend(scores.mean() + 10 * penalty, optimizer)

    return Program(step, critic, [optimizer], batch)


class _Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(128, 128, 32), mlp(16, 128, 128)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, -1)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(code), mean, log_variance


@program()
def variational_autoencoder() -> Program:
    model = _Autoencoder()

    def loss_of(output: Any, x: Tensor) -> Tensor:
        picture, mean, log_variance = output
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(-1).mean()
        return F.binary_cross_entropy_with_logits(picture, x) + divergence

    def make_batch() -> tuple[Tensor, Tensor]:
        x = torch.rand(512, 128)
        return x, x

    return supervised(model, torch.optim.Adam(model.parameters()), make_batch, loss_of)


@program()
def siamese_triplet() -> Program:
    model = mlp(64, 128, 32)
    optimizer = torch.optim.RMSprop(model.parameters())
    batch = Batch()

    def step() -> Tensor:
        anchor, near, far = batch.of(tuple(torch.randn(256, 64) for _ in range(3)))
        return descend(F.triplet_margin_loss(model(anchor), model(near), model(far)), optimizer)

    return Program(step, model, [optimizer], batch)


@program()
def contrastive_with_queue() -> Program:
    """An encoder of keys that follows the trained one, and a queue of keys that is written over in turn."""
    queries = mlp(64, 128, 32)
    keys = copy.deepcopy(queries).requires_grad_(False)
    queue = F.normalize(torch.randn(32, 1024), dim=0)
    optimizer = torch.optim.SGD(queries.parameters(), 0.1, momentum=0.9)
    batch, at = Batch(), [0]

    def step() -> Tensor:
        x = batch.of(torch.randn(128, 64))
        q = F.normalize(queries(x + 0.1 * torch.randn_like(x)), dim=1)
        with torch.no_grad():
            for slow, fast in zip(keys.parameters(), queries.parameters(), strict=True):
                slow.mul_(0.999).add_(fast, alpha=0.001)
            k = F.normalize(keys(x + 0.1 * torch.randn_like(x)), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.clone()], 1)
        loss = F.cross_entropy(logits / 0.07, torch.zeros(128, dtype=torch.long))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        queue[:, at[0] : at[0] + 128] = k.t()
        at[0] = (at[0] + 128) % 1024
        return loss.detach()

    return Program(step, queries, [optimizer], batch, {"keys": keys})


# ---- sequences -------------------------------------------------------------------------------------------------------


class _Routed(nn.Module):
    """Each token goes to its two best experts."""

    def __init__(self, width: int = 64, num_experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, num_experts)
        self.experts = nn.ModuleList(mlp(width, 128, width) for _ in range(num_experts))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2, dim=-1)
        output = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            output.index_add_(0, token, expert(x[token]) * weights[token, place, None])
        return output


@program()
def mixture_of_experts() -> Program:
    model = nn.Sequential(nn.Linear(32, 64), _Routed(), nn.Linear(64, 8))
    return supervised(
        model, torch.optim.AdamW(model.parameters()), lambda: (torch.randn(512, 32), torch.randn(512, 8)), F.mse_loss
    )


class _EncoderDecoder(nn.Module):
    """Shared token embedding, relative positions as a bias of the attention, a causal decoder."""

    def __init__(self, vocabulary: int = 100, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.bias = nn.Embedding(32, 4)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, 4, 128, batch_first=True), 1, enable_nested_tensor=False
        )
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(width, 4, 128, batch_first=True), 1)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        place = torch.arange(source.shape[1])
        distance = (place[:, None] - place[None]).clamp(-16, 15) + 16
        bias = self.bias(distance).permute(2, 0, 1).repeat(len(source), 1, 1)
        memory = self.encoder(self.embedding(source), mask=bias)
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        hidden = self.decoder(self.embedding(target), memory, tgt_mask=causal)
        return F.linear(hidden, self.embedding.weight)


@program()
def encoder_decoder() -> Program:
    model = _EncoderDecoder()
    optimizer = torch.optim.Adagrad(model.parameters())
    batch = Batch()

    def step() -> Tensor:
        source, target = batch.of((torch.randint(0, 100, (8, 24)), torch.randint(0, 100, (8, 16))))
        logits = model(source, target[:, :-1])
        return descend(F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), label_smoothing=0.1), optimizer)

    return Program(step, model, [optimizer], batch)


class _CachedDecoder(nn.Module):
    """One layer that keeps keys and values of the tokens so far."""

    def __init__(self, width: int = 64, vocabulary: int = 100) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor, cache: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        q, k, v = (
            part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(self.embedding(tokens)).chunk(3, -1)
        )
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        return self.out(attended.transpose(1, 2).flatten(2)), (k, v)


@program()
def generate_with_cache() -> Program:
    model = _CachedDecoder().eval()
    batch = Batch()

    def step() -> Tensor:
        tokens = batch.of(torch.randint(0, 100, (8, 64)))
        cache, made = None, [tokens]
        with torch.inference_mode():
            for _ in range(8):
                logits, cache = model(made[-1], cache)
                made.append(logits[:, -1:].argmax(-1))
        return torch.cat(made, 1)

    return Program(step, model, [], batch)


@program()
def truncated_lstm() -> Program:
    """The hidden state goes on from step to step, without its graph."""
    cell, head = nn.LSTM(32, 64, 2, batch_first=True, dropout=0.1), nn.Linear(64, 32)
    model = nn.ModuleList([cell, head])
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True)
    batch, state = Batch(), [(torch.zeros(2, 8, 64), torch.zeros(2, 8, 64))]

    def step() -> Tensor:
        x = batch.of(torch.randn(8, 24, 32))
        hidden, (h, c) = cell(x[:, :-1], state[0])
        state[0] = (h.detach(), c.detach())
        return descend(F.mse_loss(head(hidden), x[:, 1:]), optimizer, clear_first=True)

    return Program(step, model, [optimizer], batch)


@program()
def tied_language_model() -> Program:
    embedding, mixer, head = nn.Embedding(200, 64), mlp(64, 128, 64), nn.Linear(64, 200, bias=False)
    head.weight = embedding.weight
    model = nn.Sequential(embedding, mixer, head)
    return supervised(
        model,
        torch.optim.AdamW(model.parameters()),
        lambda: (torch.randint(0, 200, (16, 32)), torch.randint(0, 200, (16, 32))),
        lambda logits, y: F.cross_entropy(logits.flatten(0, 1), y.flatten()),
    )


@program()
def dynamic_shapes() -> Program:
    model = nn.GRU(32, 64, batch_first=True)
    optimizer = torch.optim.Adam(model.parameters())
    batch = Batch()

    def step() -> Tensor:
        lengths = torch.randint(4, 40, (8,), device="cpu").sort(descending=True).values
        x = batch.of(torch.randn(8, int(lengths[0]), 32))
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        output, _ = nn.utils.rnn.pad_packed_sequence(model(packed)[0], batch_first=True)
        return descend(output.square().mean(), optimizer)

    return Program(step, model, [optimizer], batch)


# ---- graphs, recommendations, reinforcement, signals -----------------------------------------------------------------


class _GraphLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(2 * width, width), nn.GRUCell(width, width)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        messages = F.relu(self.message(torch.cat([nodes[source], nodes[target]], 1)))
        gathered = torch.zeros_like(nodes).index_add(0, target, messages)
        strongest = torch.full_like(nodes, -1e9).scatter_reduce(
            0, target[:, None].expand_as(messages), messages, "amax"
        )
        return self.update(gathered + strongest.clamp(min=0), nodes)


@program()
def graph_network() -> Program:
    layer, head = _GraphLayer(32), nn.Linear(32, 4)
    model = nn.ModuleDict({"layer": layer, "head": head})
    optimizer = torch.optim.Adam(model.parameters())
    edges, labels = torch.randint(0, 200, (2, 1000)), torch.randint(0, 4, (200,))
    batch = Batch()

    def step() -> Tensor:
        nodes = batch.of(torch.randn(200, 32))
        hidden = nodes
        for _ in range(2):
            hidden = layer(hidden, edges)
        return descend(F.cross_entropy(head(hidden), labels), optimizer)

    return Program(step, model, [optimizer], batch)


@program()
def sparse_embedding_gradients() -> Program:
    users, items = nn.EmbeddingBag(2000, 32, sparse=True, mode="sum"), nn.Embedding(2000, 32, sparse=True)
    model = nn.ModuleDict({"user": users, "item": items})
    optimizer = torch.optim.SparseAdam(model.parameters())
    batch = Batch()

    def step() -> Tensor:
        user, item = batch.of((torch.randint(0, 2000, (256, 4)), torch.randint(0, 2000, (256,))))
        return descend(-F.logsigmoid((users(user) * items(item)).sum(1)).mean(), optimizer)

    return Program(step, model, [optimizer], batch)


@program()
def replay_buffer_q_learning() -> Program:
    """Acts, remembers, learns from what it remembers; a second network follows now and then."""
    online = mlp(8, 128, 4)
    target = copy.deepcopy(online).requires_grad_(False)
    optimizer = torch.optim.Adam(online.parameters())
    memory: deque[tuple[Tensor, int, float, Tensor]] = deque(maxlen=500)
    batch = Batch()
    seen: list[Any] = [torch.randn(8), 0]

    def act() -> None:
        state = seen[0]
        with torch.no_grad():
            action = int(online(state).argmax())
        after = 0.9 * state + 0.1 * torch.randn(8)
        memory.append((state, action, float(after.sum()), after))
        seen[0] = after

    def step() -> Tensor:
        for _ in range(40):
            act()
        rows = [memory[int(index)] for index in torch.randint(0, len(memory), (128,))]
        states, nexts = torch.stack([row[0] for row in rows]), torch.stack([row[3] for row in rows])
        actions, rewards = torch.tensor([row[1] for row in rows]), torch.tensor([row[2] for row in rows])
        batch.of((states, nexts, actions, rewards))
        with torch.no_grad():
            wanted = rewards + 0.99 * target(nexts).max(1).values
        loss = F.smooth_l1_loss(online(states).gather(1, actions[:, None])[:, 0], wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen[1] += 1
        if seen[1] % 3 == 0:
            target.load_state_dict(online.state_dict())
        return loss.detach()

    return Program(step, online, [optimizer], batch, {"target": target})


class _SpectralFilter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.response = nn.Parameter(torch.randn(8, 129, dtype=torch.cfloat))
        self.mix = nn.Conv1d(8, 8, 5, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x) * self.response
        return F.gelu(torch.fft.irfft(spectrum, n=x.shape[-1]) + self.mix(x))


@program()
def complex_spectral_filter() -> Program:
    model = nn.Sequential(nn.Conv1d(1, 8, 5, padding=2), _SpectralFilter(), nn.Conv1d(8, 1, 1))
    return supervised(
        model,
        torch.optim.Adam(model.parameters()),
        lambda: (torch.randn(16, 1, 256), torch.randn(16, 1, 256)),
        F.mse_loss,
    )


@program()
def features_from_input_alone() -> Program:
    """Large features that no parameter has a part in, kept for backward."""

    class Positional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(256, 16)

        def forward(self, x: Tensor) -> Tensor:
            waves = x[:, None] * torch.ones(64, 1)
            waves = torch.cat([waves.sin(), waves.cos()], -1)
            return self.head(waves).mean(1)

    model = Positional()
    return supervised(
        model, torch.optim.SGD(model.parameters(), 0.1), lambda: (torch.randn(32, 128), torch.randn(32, 16)), F.mse_loss
    )
