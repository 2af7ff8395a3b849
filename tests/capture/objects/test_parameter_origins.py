"""Lines at which parameters and buffers are registered."""

from __future__ import annotations

from torch import nn

from tracer.capture.objects.parameter_origins import ParameterOrigins, lines_of


def test_a_loss_without_weights_has_a_buffer_that_is_none() -> None:
    with ParameterOrigins():
        criterion, model = nn.CrossEntropyLoss(), nn.BatchNorm1d(4)
    assert criterion.weight is None
    (line, *_) = lines_of(model, "running_mean", model.running_mean) if model.running_mean is not None else ()
    assert line.file == __file__
