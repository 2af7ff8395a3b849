"""The training loop of xMem's runs of transformers: MODEL OPTIMIZER BATCH; outputs and batch stay until replaced."""

import sys

import torch

from benchmarks.published_programs import language_model

name, optimizer_name, batch_size = sys.argv[1], sys.argv[2], int(sys.argv[3])
model = language_model(name).to("cuda").train()
optimizer = getattr(torch.optim, optimizer_name)(model.parameters(), lr=1e-3)
for _ in range(3):
    optimizer.zero_grad()
    names = ("input_ids", "attention_mask", "labels")
    batch = {key: torch.ones(batch_size, 128, dtype=torch.int64).to("cuda") for key in names}
    outputs = model(**batch)
    outputs.loss.backward()
    optimizer.step()
print(torch.cuda.max_memory_reserved())
