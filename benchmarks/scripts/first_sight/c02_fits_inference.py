"""Control: an ordinary inference that fits, its results on the CPU; on h100:6GiB: nothing."""

import torch
from torch import nn

layer = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True)
model = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).half().cuda().eval()
results = []
with torch.no_grad():
    for batch in range(20):
        x = torch.randn(32, 512, 1024, device="cuda", dtype=torch.half)
        results.append(model(x)[:, 0].float().cpu())
print(torch.cat(results).shape)
