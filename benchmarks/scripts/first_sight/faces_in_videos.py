# nvidia-cosmos/cosmos-transfer2.5#106; h100:4GiB
"""Finds the faces in the frames of generated videos, and blurs them before the videos are handed out."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


def conv_bn(inp, out, stride=1):
    return nn.Sequential(nn.Conv2d(inp, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.LeakyReLU(0.1, inplace=True))


class RetinaFace(nn.Module):
    def __init__(self, anchors=2):
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, 16, 2), conv_bn(16, 32), conv_bn(32, 64, 2))
        self.stages = nn.ModuleList([conv_bn(64, 64, 2), conv_bn(64, 128, 2), conv_bn(128, 256, 2)])
        self.laterals = nn.ModuleList([nn.Conv2d(width, 64, 1) for width in (64, 128, 256)])
        self.loc, self.conf = nn.Conv2d(64, anchors * 4, 1), nn.Conv2d(64, anchors * 2, 1)

    def forward(self, x):
        x = self.stem(x)
        loc, conf = [], []
        for stage, lateral in zip(self.stages, self.laterals):
            x = stage(x)
            feature = lateral(x)
            loc.append(self.loc(feature).permute(0, 2, 3, 1).reshape(len(x), -1, 4))
            conf.append(self.conf(feature).permute(0, 2, 3, 1).reshape(len(x), -1, 2))
        return torch.cat(loc, 1), torch.cat(conf, 1).softmax(-1)


class FaceBlurFilter:
    mean = torch.tensor([104.0, 117.0, 123.0])

    def __init__(self, batch_size=4, top=16, device="cuda"):
        self.batch_size, self.top, self.device = batch_size, top, device
        self.net = RetinaFace().to(device).eval()

    def preprocess_frames(self, frames):
        frames = torch.from_numpy(frames).to(self.device).float()
        frames = frames - self.mean.to(self.device)
        return frames.permute(0, 3, 1, 2)

    def pixelate(self, frame, boxes, blocks=8):
        height, width = frame.shape[:2]
        for x1, y1, x2, y2 in boxes:
            x1, x2 = sorted((int(x1) % width, int(x2) % width))
            y1, y2 = sorted((int(y1) % height, int(y2) % height))
            if x2 - x1 < blocks or y2 - y1 < blocks:
                continue
            face = torch.from_numpy(frame[y1:y2, x1:x2]).permute(2, 0, 1)[None].float()
            face = F.interpolate(F.adaptive_avg_pool2d(face, blocks), (y2 - y1, x2 - x1))
            frame[y1:y2, x1:x2] = face[0].permute(1, 2, 0).byte().numpy()
        return frame

    @torch.no_grad()
    def postprocess(self, frames):
        frames_tensor = self.preprocess_frames(frames)
        blurred = []
        for start in range(0, len(frames), self.batch_size):
            batch = frames_tensor[start : start + self.batch_size]
            loc, conf = self.net(batch)
            scores, index = conf[..., 1].topk(self.top)
            boxes = loc.gather(1, index[..., None].expand(-1, -1, 4))
            boxes = boxes.masked_fill(scores[..., None] < 0.7, 0).nan_to_num(0, 0, 0).clamp(0, 1279).cpu().numpy()
            for frame, faces in zip(frames[start : start + self.batch_size], boxes):
                blurred.append(self.pixelate(frame, faces))
        return blurred


def generate_video(seconds, fps=24, height=720, width=1280):
    frames = np.zeros((seconds * fps, height, width, 3), dtype=np.uint8)
    frames[:, ::8] = np.random.randint(0, 256, (1, 1, width, 3), dtype=np.uint8)
    return frames


guardrail = FaceBlurFilter()
for seconds in (2, 5, 15):
    video = generate_video(seconds)
    safe = guardrail.postprocess(video)
    print(f"{seconds} s: {len(safe)} frames, peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")
