# NVIDIA-NeMo/RL#3124; h100:6GiB
"""Scores sampled answers with a reference and a policy language model, and tunes the policy with a clipped, regularized loss."""

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 128_256


def language_model():
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=512, intermediate_size=1536, num_hidden_layers=6, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=2048, tie_word_embeddings=True, attn_implementation="sdpa",
    )
    with torch.device("cuda"):
        return LlamaForCausalLM(config).to(torch.bfloat16)


def rollouts(batches, answers=8, length=1024, prompt=256):
    for _ in range(batches):
        mask = torch.zeros(answers, length, dtype=torch.bool)
        mask[:, prompt:] = True
        yield {
            "input_ids": torch.randint(VOCABULARY, (answers, length)),
            "token_mask": mask,
            "advantages": torch.linspace(-1, 1, answers),
        }


def next_token_logprobs(logits, input_ids, chunk_size=None):
    """Log-probabilities of the tokens that follow, [batch, sequence - 1]."""
    next_tokens = input_ids[:, 1:].unsqueeze(-1)
    logits = logits[:, :-1]
    if chunk_size is None:
        return logits.float().log_softmax(-1).gather(-1, next_tokens).squeeze(-1)
    chunks = []
    for start in range(0, logits.shape[1], chunk_size):
        chunk = logits[:, start : start + chunk_size]
        chunks.append(chunk.float().log_softmax(-1))
    log_probs = torch.cat(chunks, dim=1)
    return log_probs.gather(-1, next_tokens).squeeze(-1)


class PolicyWorker:
    def __init__(self, logprob_chunk_size=64, micro_batch=1, lr=1e-6):
        self.policy, self.reference = language_model(), language_model().requires_grad_(False)
        self.reference.load_state_dict(self.policy.state_dict())
        self.logprob_chunk_size, self.micro_batch = logprob_chunk_size, micro_batch
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=lr, weight_decay=0.01)

    @torch.no_grad()
    def get_logprobs(self, model, batch):
        model.eval()
        logits = model(batch["input_ids"], use_cache=False).logits
        return next_token_logprobs(logits, batch["input_ids"], self.logprob_chunk_size)

    def loss(self, batch, clip=0.2, kl=0.01):
        logits = self.policy(batch["input_ids"], use_cache=False).logits
        logprobs = next_token_logprobs(logits, batch["input_ids"])
        mask = batch["token_mask"][:, 1:]
        ratio = (logprobs - batch["logprobs"]).exp()
        advantages = batch["advantages"].unsqueeze(-1)
        surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
        distance = batch["reference_logprobs"] - logprobs
        penalty = distance.exp() - distance - 1
        return ((kl * penalty - surrogate) * mask).sum() / mask.sum().clamp(min=1)

    def train(self, batch):
        self.policy.train()
        total = 0.0
        answers = len(batch["input_ids"])
        for start in range(0, answers, self.micro_batch):
            part = {name: value[start : start + self.micro_batch] for name, value in batch.items()}
            loss = self.loss(part) * self.micro_batch / answers
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total


worker = PolicyWorker()
for step, batch in enumerate(rollouts(2)):
    batch = {name: value.cuda() for name, value in batch.items()}
    batch["logprobs"] = worker.get_logprobs(worker.policy, batch)
    batch["reference_logprobs"] = worker.get_logprobs(worker.reference, batch)
    print(f"step {step}: {worker.train(batch):.4f}")
