"""diffusers: a small conditional U-Net, noise added by its scheduler, in bfloat16 mixed precision."""

import torch
from diffusers import DDPMScheduler, UNet2DConditionModel

model = UNet2DConditionModel(
    sample_size=32, block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=64,
    down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    norm_num_groups=8,
).cuda()  # fmt: skip
schedule = DDPMScheduler()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(8):
    latents, text = torch.randn(2, 4, 32, 32, device="cuda"), torch.randn(2, 16, 64, device="cuda")
    noise, times = torch.randn_like(latents), torch.randint(0, 1000, (2,), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        said = model(schedule.add_noise(latents, noise, times), times, text).sample
        loss = torch.nn.functional.mse_loss(said.float(), noise)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
