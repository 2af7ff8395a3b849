"""Darcy flow, solved here, so that a demonstration can train on physics without downloading anything.

Water seeps through a square of two materials: -div(a grad u) = 1 inside, u = 0 on the boundary, with a = 12 or 3. A
model learns the map from the permeability a to the pressure u.

Shape letters: S samples, n grid cells of each of the two axes. Values belong to the centres of the cells,
(i + 1/2) / n. All arithmetic is in double precision.

Source:
    Li et al., Fourier Neural Operator for Parametric Partial Differential Equations, 2021, arXiv 2010.08895, A.3.2:
    the random field, its threshold and the equation.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

HIGH_PERMEABILITY, LOW_PERMEABILITY = 12.0, 3.0
_INVERSE_LENGTH, _SMOOTHNESS = 3.0, 2.0  # tau and alpha of the random field
_MEAN = (HIGH_PERMEABILITY + LOW_PERMEABILITY) / 2
_HALF_RANGE = (HIGH_PERMEABILITY - LOW_PERMEABILITY) / 2
# The highest pressure in a uniform square of the permeability that a random mix of equal shares has in the plane, their
# geometric mean (Dykhne 1971); 0.07367 is that of permeability 1. A constant, so that no sample depends on the others.
_TYPICAL_PRESSURE = 0.07367 / math.sqrt(HIGH_PERMEABILITY * LOW_PERMEABILITY)


def darcy_samples(num_samples: int, *, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw permeabilities and solve for their pressures.

    A sample depends on the seed, the size and its index alone; the global random state is neither read nor changed.

    Args:
        num_samples: Samples S.
        size: Grid cells n of each axis.
        seed: Seed of the random field.

    Returns:
        Inputs float32 [S, 3, n, n]: the permeability as +1 (high) or -1 (low), and the two coordinates. Solutions
        float32 [S, 1, n, n]: the pressure in units of a typical maximum, so between 0 and about 2.

    Raises:
        ValueError: There is nothing to draw.
    """
    if num_samples < 1 or size < 2:
        raise ValueError(f"Darcy flow needs a sample and 2 grid cells, not {num_samples} samples of {size} cells.")
    coefficient = permeability(gaussian_field(num_samples, size=size, seed=seed))
    solution = solve_darcy(coefficient) / _TYPICAL_PRESSURE
    centres = _cell_centres(size)
    coordinates = torch.stack(torch.meshgrid(centres, centres, indexing="ij"))
    channels = [((coefficient - _MEAN) / _HALF_RANGE)[:, None], coordinates.expand(num_samples, -1, -1, -1)]
    return torch.cat(channels, dim=1).float(), solution[:, None].float()


def gaussian_field(num_samples: int, *, size: int, seed: int) -> Tensor:
    """Draw smooth random fields [S, n, n] with mean 0 and covariance tau^(2 alpha - 2) (-Laplace + tau^2)^-alpha.

    The Laplacian has no flux through the boundary, so its eigenfunctions are products of cosines; tau = 3, alpha = 2.
    """
    generator = torch.Generator().manual_seed(seed)
    # One draw per sample: a longer list begins with the samples of a shorter one.
    noise = [torch.randn(size, size, generator=generator, dtype=torch.float64) for _ in range(num_samples)]
    frequency = torch.arange(size, dtype=torch.float64)
    eigenvalue = (torch.pi * frequency[:, None]) ** 2 + (torch.pi * frequency) ** 2 + _INVERSE_LENGTH**2
    amplitude = _INVERSE_LENGTH ** (_SMOOTHNESS - 1) * eigenvalue ** (-_SMOOTHNESS / 2)
    amplitude[0, 0] = 0.0
    cosines = math.sqrt(2) * torch.cos(torch.pi * frequency[:, None] * _cell_centres(size))
    cosines[0] = 1.0
    field: Tensor = cosines.T @ (torch.stack(noise) * amplitude) @ cosines
    return field


def permeability(field: Tensor) -> Tensor:
    """The high permeability where a field [S, n, n] is not negative, the low one elsewhere."""
    return torch.where(field >= 0, HIGH_PERMEABILITY, LOW_PERMEABILITY).to(field.dtype)


def apply_darcy(coefficient: Tensor, u: Tensor) -> Tensor:
    """Apply -div(a grad .) to a pressure, both [S, n, n]: finite volumes with 5 points and u = 0 on the boundary.

    Between two cells the flux sees the harmonic mean of their permeabilities, which is exact for layers; a boundary is
    half a cell away from its nearest centre.
    """
    return _outflow(coefficient, u) + _outflow(coefficient.mT, u.mT).mT


def _outflow(coefficient: Tensor, u: Tensor) -> Tensor:
    """What flows out of each cell along the last axis, per area."""
    left, right = coefficient[..., :-1], coefficient[..., 1:]
    inner = 2 * left * right / (left + right) * (u[..., :-1] - u[..., 1:])
    first, last = -2 * coefficient[..., :1] * u[..., :1], 2 * coefficient[..., -1:] * u[..., -1:]
    result: Tensor = torch.cat([first, inner, last], dim=-1).diff(dim=-1) * u.shape[-1] ** 2
    return result


def solve_darcy(
    coefficient: Tensor, source: Tensor | None = None, *, tolerance: float = 1e-10, max_iterations: int = 500
) -> Tensor:
    """Solve -div(a grad u) = source with u = 0 on the boundary, by preconditioned conjugate gradients.

    The preconditioner solves the equation of permeability 1 exactly, in sines. What is left is as badly conditioned as
    the permeability varies, 12 / 3 = 4, so about 20 iterations do on a grid of any size.

    Args:
        coefficient: Permeability a > 0, float64 [S, n, n].
        source: Right-hand side, float64 [S, n, n]; 1 everywhere if None.
        tolerance: Norm of the residual, as a share of the source's, below which a sample is solved.
        max_iterations: After so many a sample counts as not solvable.

    Returns:
        Pressure u, float64 [S, n, n].

    Raises:
        ArithmeticError: A sample was not solved.
    """
    source = torch.ones_like(coefficient) if source is None else source
    precondition = _UniformSolver(coefficient.shape[-1])
    u, residual = torch.zeros_like(source), source.clone()
    z = direction = precondition(residual)
    energy = _dot(residual, z)
    enough = tolerance**2 * _dot(source, source)
    for _ in range(max_iterations):
        open_samples = _dot(residual, residual) > enough  # a solved one stands still, whatever the others do
        if not open_samples.any():
            return u
        applied = apply_darcy(coefficient, direction)
        step = torch.where(open_samples, energy / _dot(direction, applied), 0.0)
        u, residual = u + step * direction, residual - step * applied
        z = precondition(residual)
        previous, energy = energy, _dot(residual, z)
        direction = z + torch.where(open_samples, energy / previous, 0.0) * direction
    raise ArithmeticError(f"The Darcy equation was not solved to {tolerance:g} in {max_iterations} iterations.")


class _UniformSolver:
    """Solves the discrete equation for permeability 1; sines through the cell centres are its eigenvectors."""

    def __init__(self, size: int) -> None:
        wave = torch.pi * torch.arange(1, size + 1, dtype=torch.float64)
        sines = torch.sin(wave[:, None] * _cell_centres(size))
        self._sines = sines / sines.norm(dim=1, keepdim=True)
        eigenvalue = 4 * size**2 * torch.sin(wave / (2 * size)) ** 2
        self._eigenvalues = eigenvalue[:, None] + eigenvalue

    def __call__(self, source: Tensor) -> Tensor:
        s = self._sines
        solution: Tensor = s.T @ ((s @ source @ s.T) / self._eigenvalues) @ s
        return solution


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner product of each sample, [S, 1, 1]."""
    return (a * b).sum(dim=(-2, -1), keepdim=True)


def _cell_centres(size: int) -> Tensor:
    return (torch.arange(size, dtype=torch.float64) + 0.5) / size
