# huggingface/transformers#46176; h100:4GiB
"""A vision tower over patches of pictures of any size, each with a column and a row."""

import torch
from torch import nn
import torch.nn.functional as F


class PatchEmbedder(nn.Module):
    def __init__(self, width, patch_size=16, position_embedding_size=10240):
        super().__init__()
        self.position_embedding_size = position_embedding_size
        self.input_proj = nn.Linear(3 * patch_size**2, width, bias=False)
        self.position_embedding_table = nn.Parameter(torch.ones(2, position_embedding_size, width))

    def _position_embeddings(self, pixel_position_ids, padding_positions):
        clamped_positions = pixel_position_ids.clamp(min=0)
        one_hot = F.one_hot(clamped_positions, num_classes=self.position_embedding_size)
        one_hot = one_hot.permute(0, 2, 1, 3).to(self.position_embedding_table)
        position_embeddings = (one_hot @ self.position_embedding_table).sum(dim=1)
        return torch.where(padding_positions.unsqueeze(-1), 0.0, position_embeddings)

    def forward(self, pixel_values, pixel_position_ids, padding_positions):
        return self.input_proj(2 * (pixel_values - 0.5)) + self._position_embeddings(pixel_position_ids, padding_positions)


class VisionTower(nn.Module):
    def __init__(self, width=768, layers=16):
        super().__init__()
        self.patch_embedder = PatchEmbedder(width)
        layer = nn.TransformerEncoderLayer(width, 12, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, pixel_values, pixel_position_ids):
        padding = (pixel_position_ids == -1).all(-1)
        return self.encoder(self.patch_embedder(pixel_values, pixel_position_ids, padding)).mean(1)


model = VisionTower().cuda().bfloat16().eval()
with torch.inference_mode():
    for pictures in (1, 4, 9):
        pixel_values = torch.rand(pictures, 2520, 768, device="cuda", dtype=torch.bfloat16)
        positions = torch.randint(0, 60, (pictures, 2520, 2), device="cuda")
        print(pictures, model(pixel_values, positions).shape)
