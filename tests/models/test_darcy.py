"""Darcy flow: the discrete equation, the random fields and the samples."""

import numpy as np
import pytest
import torch

from models.darcy import apply_darcy, darcy_samples, gaussian_field, permeability, solve_darcy

pytestmark = pytest.mark.usefixtures("one_thread")


def centres(size):
    return (torch.arange(size, dtype=torch.float64) + 0.5) / size


# ---- the discrete equation -------------------------------------------------------------------------------------------


def operator_by_loops(a, u):
    """Cell by cell and wall by wall."""
    n = len(a)
    result = np.zeros((n, n))
    for i, j in np.ndindex(n, n):
        for k, m in ((i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)):
            if 0 <= k < n and 0 <= m < n:
                result[i, j] += 2 / (1 / a[i, j] + 1 / a[k, m]) * (u[i, j] - u[k, m]) * n * n
            else:
                result[i, j] += a[i, j] * u[i, j] / 0.5 * n * n
    return result


def test_operator_by_loops():
    coefficient = permeability(gaussian_field(2, size=7, seed=1))
    u = gaussian_field(2, size=7, seed=2)
    for a, v, result in zip(coefficient.numpy(), u.numpy(), apply_darcy(coefficient, u).numpy(), strict=True):
        np.testing.assert_allclose(result, operator_by_loops(a, v), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [2, 17, 64])
def test_solution_satisfies_the_equation(size):
    coefficient = permeability(gaussian_field(4, size=size, seed=0))
    residual = apply_darcy(coefficient, solve_darcy(coefficient)) - 1
    assert residual.abs().max() < 1e-7


def test_an_equation_that_is_not_solved_is_an_error():
    with pytest.raises(ArithmeticError, match="not solved to 1e-10 in 2 iterations"):
        solve_darcy(permeability(gaussian_field(1, size=16, seed=0)), max_iterations=2)


# ---- random fields and samples ---------------------------------------------------------------------------------------


def test_fields_have_the_spectrum_that_they_are_made_with():
    """Variance of each cosine mode over many fields: tau^2 (pi^2 |k|^2 + tau^2)^-2 with tau = 3."""
    size = 8
    fields = gaussian_field(4000, size=size, seed=0).numpy()
    for k, m in ((1, 0), (0, 1), (2, 1), (3, 3), (0, 0)):
        scale = np.sqrt(2.0) ** ((k > 0) + (m > 0))
        mode = scale * np.outer(*(np.cos(np.pi * f * centres(size).numpy()) for f in (k, m)))
        variance = ((fields * mode).mean(axis=(1, 2)) ** 2).mean()
        expected = 9 / (np.pi**2 * (k**2 + m**2) + 9) ** 2 if (k, m) != (0, 0) else 0.0
        assert variance == pytest.approx(expected, rel=0.1, abs=1e-20)


def test_shapes_and_units():
    inputs, solutions = darcy_samples(6, size=24, seed=0)
    assert (inputs.shape, inputs.dtype) == ((6, 3, 24, 24), torch.float32)
    assert (solutions.shape, solutions.dtype) == ((6, 1, 24, 24), torch.float32)
    assert set(inputs[:, 0].unique().tolist()) == {-1.0, 1.0}
    torch.testing.assert_close(inputs[3, 1, :, 5], centres(24).float())
    torch.testing.assert_close(inputs[3, 2, 5, :], centres(24).float())
    assert solutions.min() > 0
    assert 0.5 < solutions.max() < 2
    # The pressure really belongs to the permeability beside it: geometric mean 6, maximum 0.07367 of permeability 1.
    pressure = solutions[:, 0].double() * 0.07367 / 6
    assert (apply_darcy(4.5 * inputs[:, 0].double() + 7.5, pressure) - 1).abs().max() < 0.01


def test_a_sample_depends_on_seed_and_index_alone():
    inputs, solutions = darcy_samples(5, size=16, seed=3)
    fewer_inputs, fewer_solutions = darcy_samples(2, size=16, seed=3)
    assert torch.equal(inputs[:2], fewer_inputs)
    torch.testing.assert_close(solutions[:2], fewer_solutions, rtol=1e-6, atol=0)
    assert not torch.equal(inputs[0], inputs[1])
    assert not torch.equal(inputs, darcy_samples(5, size=16, seed=4)[0])
    again = darcy_samples(5, size=16, seed=3)
    assert torch.equal(inputs, again[0])
    assert torch.equal(solutions, again[1])


def test_global_random_state_is_neither_read_nor_changed():
    before = torch.get_rng_state()
    first = darcy_samples(2, size=8, seed=0)[0]
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        assert torch.equal(darcy_samples(2, size=8, seed=0)[0], first)


@pytest.mark.parametrize(("num_samples", "size"), [(0, 8), (1, 1)])
def test_nothing_to_draw(num_samples, size):
    with pytest.raises(ValueError, match="needs a sample and 2 grid cells"):
        darcy_samples(num_samples, size=size, seed=0)
