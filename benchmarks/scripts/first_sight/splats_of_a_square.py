# graphdeco-inria/gaussian-splatting#560; h100:2.5GiB
"""Fits Gaussian splats to the photographs of a town square, seen from fifty-six places."""

import math
import random

import torch
from torch import nn
from torch.nn import functional as F


class ModelParams:
    width, height, sh_degree, data_device = 1600, 1064, 3, "cuda"


class Camera(nn.Module):
    def __init__(self, uid, image, gt_alpha_mask, angle, data_device):
        super().__init__()
        self.uid, self.data_device = uid, torch.device(data_device)
        self.original_image = image.float().div_(255).clamp_(0.0, 1.0).to(self.data_device)
        self.image_height, self.image_width = image.shape[1:]
        self.original_image *= gt_alpha_mask.to(self.data_device)
        cos, sin = math.cos(angle), math.sin(angle)
        self.world_view = torch.tensor([[cos, 0, sin], [0, 1, 0], [-sin, 0, cos]], device="cuda")
        self.center = torch.tensor([4 * sin, 0.0, 4 * cos], device="cuda")


class Scene:
    def __init__(self, args, views):
        photograph = torch.randint(0, 256, (3, args.height, args.width), dtype=torch.uint8)
        mask = torch.ones(1, args.height, args.width)
        self.train_cameras = [Camera(i, photograph, mask, 2 * math.pi * i / views, args.data_device) for i in range(views)]

    def pick(self):
        return random.choice(self.train_cameras)


class GaussianModel(nn.Module):
    def __init__(self, points, sh_degree):
        super().__init__()
        coefficients = (sh_degree + 1) ** 2
        with torch.device("cuda"):
            self.xyz = nn.Parameter(torch.randn(points, 3))
            self.features_dc = nn.Parameter(torch.rand(points, 1, 3))
            self.features_rest = nn.Parameter(torch.zeros(points, coefficients - 1, 3))
            self.scaling = nn.Parameter(torch.full((points, 3), -4.0))
            self.rotation = nn.Parameter(torch.rand(points, 4))
            self.opacity = nn.Parameter(torch.zeros(points, 1))

    def training_setup(self):
        groups = [("xyz", 1.6e-4), ("features_dc", 2.5e-3), ("features_rest", 1.25e-4), ("opacity", 0.05), ("scaling", 5e-3), ("rotation", 1e-3)]
        return torch.optim.Adam([{"params": [getattr(self, name)], "lr": lr, "name": name} for name, lr in groups], eps=1e-15)


def render(camera, gaussians):
    view = gaussians.xyz @ camera.world_view - camera.center
    u = ((view[:, 0] / view[:, 2].abs().clamp(min=0.1) + 1) / 2 * camera.image_width).long().clamp(0, camera.image_width - 1)
    v = ((view[:, 1] / view[:, 2].abs().clamp(min=0.1) + 1) / 2 * camera.image_height).long().clamp(0, camera.image_height - 1)
    color = gaussians.features_dc[:, 0] + gaussians.features_rest.mean(1)
    size = gaussians.scaling.exp().prod(1, keepdim=True) * F.normalize(gaussians.rotation).sum(1, keepdim=True)
    weight = torch.sigmoid(gaussians.opacity) * torch.exp(-view.square().sum(1, keepdim=True)) + size
    image = torch.zeros(camera.image_height * camera.image_width, 3, device="cuda")
    image = image.index_add(0, v * camera.image_width + u, color * weight)
    return image.T.reshape(3, camera.image_height, camera.image_width)


def ssim(a, b, window=11):
    kernel = torch.full((3, 1, window, window), 1 / window**2, device=a.device)
    blur = lambda t: F.conv2d(t[None], kernel, padding=window // 2, groups=3)
    mean_a, mean_b = blur(a), blur(b)
    var_a, var_b, cov = blur(a * a) - mean_a**2, blur(b * b) - mean_b**2, blur(a * b) - mean_a * mean_b
    return ((2 * mean_a * mean_b + 1e-4) * (2 * cov + 9e-4) / ((mean_a**2 + mean_b**2 + 1e-4) * (var_a + var_b + 9e-4))).mean()


def training(args, iterations=40, views=56, points=1_100_000, lambda_dssim=0.2):
    scene, gaussians = Scene(args, views), GaussianModel(points, args.sh_degree)
    optimizer = gaussians.training_setup()
    for iteration in range(1, iterations + 1):
        camera = scene.pick()
        image, gt_image = render(camera, gaussians), camera.original_image.cuda()
        loss = (1 - lambda_dssim) * (image - gt_image).abs().mean() + lambda_dssim * (1 - ssim(image, gt_image))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if iteration % 10 == 0:
            print(f"[ITER {iteration}] loss {loss.item():.4f}")


training(ModelParams())
