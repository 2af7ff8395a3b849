"""Parameters whose memory is another than before: `parameter.data = ...`, as MoCo updates its key encoder."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from tracer.capture import torch_private
from tracer.capture.objects.known_storages import Role

_PLAIN = (Tensor, nn.Parameter)


class MovedParameters:
    """Remembers which storage each parameter had, without keeping it alive; a look costs about 1 us a parameter."""

    def __init__(self) -> None:
        self._seen: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def among(self, parameters: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[Role, str, Tensor]]:
        """Those that have got another storage since they were last looked at, or were not looked at so far."""
        for name, parameter in parameters:
            if type(parameter) not in _PLAIN or torch_private.is_wrapped_by_transform(parameter):
                continue
            try:
                storage = parameter.untyped_storage()
            except (RuntimeError, NotImplementedError):  # one without memory of its own, such as a sparse tensor
                continue
            seen = self._seen.get(id(parameter))
            if seen is None or seen() is not storage:
                self._seen[id(parameter)] = weakref.ref(storage)
                yield Role.PARAMETER, name, parameter
