# MIC-DKFZ/nnUNet#34; h100:3GiB
"""Prediction of volumes with the networks of five folds, whose outputs are averaged."""

import torch
from torch import nn


def stage(a, b, stride):
    return nn.Sequential(nn.Conv3d(a, b, 3, stride, 1), nn.InstanceNorm3d(b, affine=True), nn.LeakyReLU(inplace=True), nn.Conv3d(b, b, 3, 1, 1), nn.InstanceNorm3d(b, affine=True), nn.LeakyReLU(inplace=True))


class GenericUNet(nn.Module):
    def __init__(self, widths=(32, 64, 128, 256, 512, 640), classes=4):
        super().__init__()
        self.down = nn.ModuleList(stage(a, b, 1 if a == 1 else 2) for a, b in zip((1, *widths), widths))
        self.up = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, 2) for a, b in zip(widths, widths[1:]))
        self.merge = nn.ModuleList(stage(2 * a, a, 1) for a in widths[:-1])
        self.last = nn.Conv3d(widths[0], classes, 1)

    def forward(self, x):
        skips = []
        for down in self.down:
            x = down(x)
            skips.append(x)
        for i in range(len(self.up) - 1, -1, -1):
            x = self.merge[i](torch.cat([skips[i], self.up[i](x)], 1))
        return self.last(x)


class Trainer:
    def __init__(self):
        self.network = GenericUNet().cuda().eval()

    def load_checkpoint(self, fold, map_location="cuda"):
        """State dict of a fold; here in place of torch.load, which knows map_location too."""
        return {name: torch.empty_like(value, device=map_location) for name, value in self.network.state_dict().items()}


def load_model_and_checkpoint_files(folds):
    trainer = Trainer()
    return trainer, [trainer.load_checkpoint(fold) for fold in folds]


@torch.inference_mode()
def predict_case(trainer, all_params, volume):
    softmax = None
    for params in all_params:
        trainer.network.load_state_dict(params)
        output = trainer.network(volume).softmax(1)
        softmax = output if softmax is None else softmax + output
    return (softmax / len(all_params)).argmax(1).cpu()


trainer, all_params = load_model_and_checkpoint_files(folds=range(5))
for case in range(3):
    volume = torch.rand(1, 1, 96, 128, 128, device="cuda")
    print(case, predict_case(trainer, all_params, volume).shape)
