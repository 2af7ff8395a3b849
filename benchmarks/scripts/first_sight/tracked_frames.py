# facebookresearch/sam2#196; h100:3GiB
"""Objects are followed through a video: each frame looks at the memories of the frames before it."""

import torch
from torch import nn
import torch.nn.functional as F


class Tracker(nn.Module):
    def __init__(self, width=64, num_maskmem=7):
        super().__init__()
        self.num_maskmem = num_maskmem
        self.encoder = nn.Sequential(nn.Conv2d(3, 32, 7, 4, 3), nn.GELU(), nn.Conv2d(32, width, 4, 4))
        self.to_query, self.to_memory = nn.Conv2d(width, width, 1), nn.Linear(width, 2 * width)
        self.decoder = nn.ConvTranspose2d(width, 1, 4, 4)
        self.memory_encoder = nn.Conv2d(width + 1, width, 3, padding=1)

    def track_step(self, image, prompt, memories):
        features = self.encoder(image[None]).expand(len(prompt), -1, -1, -1)
        query = (self.to_query(features) + prompt[:, :, None, None]).flatten(2).transpose(1, 2).contiguous()
        if memories:
            memory = torch.cat([m.flatten(2).transpose(1, 2) for m in memories], 1)
            keys, values = self.to_memory(memory).chunk(2, -1)
            query = query + F.scaled_dot_product_attention(query[:, None], keys[:, None], values[:, None])[:, 0]
        pixels = query.transpose(1, 2).unflatten(2, features.shape[2:])
        masks = self.decoder(pixels)
        small = F.adaptive_avg_pool2d(masks.sigmoid(), features.shape[2:])
        return masks, self.memory_encoder(torch.cat([pixels, small], 1)), pixels.mean((2, 3))


class VideoPredictor:
    def __init__(self, model):
        self.model = model

    def init_state(self, video, objects):
        return {"video": video, "prompt": torch.rand(objects, 64, device="cuda"), "output_dict": {}}

    @torch.inference_mode()
    def propagate_in_video(self, state):
        outputs = state["output_dict"]
        for index, frame in enumerate(state["video"]):
            recent = range(max(0, index - self.model.num_maskmem), index)
            memories = [outputs[i]["maskmem_features"] for i in recent]
            masks, features, pointer = self.model.track_step(frame.cuda().float() / 255, state["prompt"], memories)
            outputs[index] = {"maskmem_features": features, "pred_masks": masks, "obj_ptr": pointer}
            yield index, (masks > 0).flatten(1).any(1)


predictor = VideoPredictor(Tracker().cuda().eval())
video = torch.randint(0, 256, (180, 3, 1024, 1024), dtype=torch.uint8)
state = predictor.init_state(video, objects=12)
for index, present in predictor.propagate_in_video(state):
    if index % 20 == 0:
        print(index, present.cpu().sum())
