# hkchengrex/Mask-Propagation#8; h100:2.5GiB
"""Follows marked animals through a video: the masks of the first frame are carried on to all the others."""

import torch
import torch.nn.functional as F
from torch import nn


def layers(inputs, *widths):
    modules = []
    for width in widths:
        modules += [nn.Conv2d(inputs, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        inputs = width
    return nn.Sequential(*modules)


class PropagationNetwork(nn.Module):
    def __init__(self, key_width=64, value_width=256):
        super().__init__()
        self.frame_encoder = layers(3, 32, 64, 128, 256)
        self.mask_encoder = layers(4, 32, 64, 128, value_width)
        self.key = nn.Conv2d(256, key_width, 3, padding=1)
        self.decoder = nn.Sequential(nn.Conv2d(256 + value_width, 128, 3, padding=1), nn.ReLU(), nn.Conv2d(128, 1, 3, padding=1))

    def encode_key(self, frame):
        features = self.frame_encoder(frame)
        return self.key(features).flatten(2), features

    def encode_value(self, frame, masks):
        return self.mask_encoder(torch.cat([frame.expand(len(masks), -1, -1, -1), masks], 1)).flatten(2)

    def segment(self, features, readout):
        objects = len(readout)
        readout = readout.view(objects, -1, *features.shape[-2:])
        logits = self.decoder(torch.cat([features.expand(objects, -1, -1, -1), readout], 1))
        return F.interpolate(logits, scale_factor=16, mode="bilinear", align_corners=False).sigmoid()


class MemoryBank:
    """Keys and values of the frames that are remembered."""

    def __init__(self, top_k=50):
        self.keys, self.values, self.top_k = None, None, top_k

    def add(self, key, values):
        self.keys = key if self.keys is None else torch.cat([self.keys, key], -1)
        self.values = values if self.values is None else torch.cat([self.values, values], -1)

    def match(self, query):
        keys = self.keys[0]
        affinity = (2 * keys.T @ query[0] - keys.square().sum(0)[:, None]) / keys.shape[0] ** 0.5
        best, places = affinity.topk(self.top_k, dim=0)
        weights = torch.zeros_like(affinity).scatter_(0, places, best.softmax(0))
        return torch.einsum("ocm,mq->ocq", self.values, weights)


def aggregate(masks):
    background = (1 - masks).prod(0, keepdim=True)
    logits = torch.cat([background, masks]).clamp(1e-7, 1 - 1e-7)
    return (logits / (1 - logits)).log().softmax(0)


class InferenceCore:
    def __init__(self, network, images, objects, mem_freq=5):
        self.network, self.mem_freq, self.objects = network, mem_freq, objects
        self.images = images.cuda()
        self.frames, _, self.height, self.width = images.shape
        self.masks = torch.zeros(self.frames, self.height, self.width, dtype=torch.uint8)
        self.memory = MemoryBank()

    def frame(self, i):
        return self.images[i : i + 1].cuda()

    def remember(self, frame, masks):
        key, _ = self.network.encode_key(frame)
        self.memory.add(key, self.network.encode_value(frame, masks))

    @torch.no_grad()
    def interact(self, masks):
        self.remember(self.frame(0), masks.cuda())
        for i in range(1, self.frames):
            frame = self.frame(i)
            query, features = self.network.encode_key(frame)
            masks = aggregate(self.network.segment(features, self.memory.match(query)))
            self.masks[i] = masks.argmax(0)[0].to(torch.uint8).cpu()
            if i % self.mem_freq == 0:
                self.remember(frame, masks[1:])
        return self.masks


def read_video(frames=240, height=480, width=848):
    still = torch.randn(1, 3, height, width)
    return still.repeat(frames, 1, 1, 1)


def main(objects=3):
    network = PropagationNetwork().cuda().eval()
    images = read_video()
    first = torch.zeros(objects, 1, *images.shape[-2:])
    for i in range(objects):
        first[i, :, 100:300, 200 * i + 100 : 200 * i + 250] = 1
    core = InferenceCore(network, images, objects)
    masks = core.interact(first)
    print(masks.shape, masks.float().mean().item())


main()
