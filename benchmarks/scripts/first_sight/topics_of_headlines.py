# rapidsai/rapids-examples#41; h100:4GiB
"""Embeddings of headlines for a model of topics: a small transformer, batches of a data loader, means over words."""

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertModel


class Headlines(Dataset):
    def __init__(self, number, length, words):
        self.input_ids = torch.randint(0, words, (number, length))
        self.attention_mask = torch.ones(number, length, dtype=torch.long)

    def __len__(self):
        return len(self.input_ids)

    def __getitem__(self, index):
        return {"input_ids": self.input_ids[index], "attention_mask": self.attention_mask[index]}


def mean_pooling(token_embeddings, attention_mask):
    weights = attention_mask[..., None].to(token_embeddings.dtype)
    return (token_embeddings * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


def create_embeddings(model, dataset, batch_size=256):
    dataloader = DataLoader(dataset, batch_size=batch_size)
    model_o_ls, masks = [], []
    with torch.no_grad():
        for data in dataloader:
            batch = {name: value.cuda() for name, value in data.items()}
            model_obj = model(**batch)
            model_o_ls.append(model_obj.last_hidden_state)
            masks.append(batch["attention_mask"])
    pooled = [mean_pooling(states, mask) for states, mask in zip(model_o_ls, masks)]
    return torch.cat(pooled)


def project(embeddings, dimensions=5):
    centred = embeddings - embeddings.mean(0)
    _, directions = torch.linalg.eigh(centred.T @ centred)
    return centred @ directions[:, -dimensions:]


config = BertConfig(vocab_size=30_522, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
model = BertModel(config).cuda().eval()
embeddings = create_embeddings(model, Headlines(20_000, 128, 30_522))
print(project(embeddings).shape)
