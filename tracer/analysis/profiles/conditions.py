"""Conditions by name that rules are made of: what holds of a number such as a role, a phase, a category.

Shapes: B blocks.
"""

from __future__ import annotations

import numpy as np

from tracer.analysis.kinds import Kind
from tracer.analysis.profiles.attribution import Phase
from tracer.analysis.profiles.torch_categories import Category
from tracer.arrays import Bool, Int, PerBlock
from tracer.capture.objects.known_storages import BATCH, Role

NONE = -1
_KIND_OF_ROLE = {
    Role.PARAMETER: Kind.PARAMETER,
    Role.BUFFER: Kind.BUFFER,
    Role.GRADIENT: Kind.GRADIENT,
    Role.OPTIMIZER_STATE: Kind.OPTIMIZER_STATE,
    Role.INPUT: Kind.INPUT,
    Role.ARGUMENT: Kind.INPUT,
}


class Conditions:
    """What follows from single columns of `Facts`, columns [B]."""

    __slots__ = ()
    role: PerBlock[Int]
    made: PerBlock[Int]
    freed: PerBlock[Int]
    category: PerBlock[Int]
    is_gradient: PerBlock[Bool]
    is_trained: PerBlock[Bool]

    @property
    def kind_of_role(self) -> PerBlock[Int]:
        """A leaf of nobody's is a parameter if the program trains it, else points that it was called with."""
        of_role = np.full(max(Role) + 1, Kind.UNKNOWN, np.int64)
        for role, kind in _KIND_OF_ROLE.items():
            of_role[role] = kind
        of_leaf = np.where(self.is_trained, int(Kind.PARAMETER), int(Kind.INPUT))
        return np.where(self.role == Role.LEAF, of_leaf, of_role[self.role])

    @property
    def kind_of_category(self) -> PerBlock[Int]:
        """Torch's categories have our kinds' names."""
        kinds = [Kind.__members__.get(category.name, Kind.UNKNOWN) for category in Category]
        return np.array(kinds, np.int64)[self.category]

    @property
    def kind_of_gradient(self) -> PerBlock[Int]:
        """A parameter's, or one that backward makes on its way."""
        return np.where(self.is_gradient, int(Kind.GRADIENT), int(Kind.AUTOGRAD_DETAIL))

    @property
    def has_no_role(self) -> PerBlock[Bool]:
        """No live tensor was observed at its address."""
        return _truths(self.role == NONE)

    @property
    def was_named(self) -> PerBlock[Bool]:
        """A live tensor that the training names lay at its address."""
        return _truths(~np.isin(self.role, (NONE, Role.SAVED, Role.WORKSPACE)))

    @property
    def was_saved_before(self) -> PerBlock[Bool]:
        """A graph from before the recording keeps it."""
        return _truths(self.role == Role.SAVED)

    @property
    def is_librarys(self) -> PerBlock[Bool]:
        """A library's workspace of its size was observed at its address."""
        return _truths(self.role == Role.WORKSPACE)

    @property
    def is_observed_batch(self) -> PerBlock[Bool]:
        """A model was called with it, or it is a leaf that nobody trains."""
        return _truths(np.isin(self.role, BATCH) | ((self.role == Role.LEAF) & ~self.is_trained))

    @property
    def is_observed_argument(self) -> PerBlock[Bool]:
        """A model was called with it, and nobody said that it is the batch."""
        return _truths(self.role == Role.ARGUMENT)

    @property
    def is_observed_gradient(self) -> PerBlock[Bool]:
        """A parameter's .grad lay there."""
        return _truths(self.role == Role.GRADIENT)

    @property
    def is_lent(self) -> PerBlock[Bool]:
        """Known as a parameter or an argument, thus only while the program holds it as such."""
        return _truths(np.isin(self.role, (Role.PARAMETER, Role.ARGUMENT)))

    @property
    def not_seen_made(self) -> PerBlock[Bool]:
        """Allocated before the recording, or where the profiler does not record."""
        return _truths(self.made == NONE)

    @property
    def made_in_forward(self) -> PerBlock[Bool]:
        """Allocated during a call of a model."""
        return _truths(self.made == Phase.FORWARD)

    @property
    def made_in_backward(self) -> PerBlock[Bool]:
        """By autograd, or by what it called."""
        return _truths(self.made == Phase.BACKWARD)

    @property
    def made_in_optimizer(self) -> PerBlock[Bool]:
        """Allocated during an optimizer's step."""
        return _truths(self.made == Phase.OPTIMIZER)

    @property
    def made_in_loop(self) -> PerBlock[Bool]:
        """Outside forward, backward and optimizer."""
        return _truths(self.made == Phase.OTHER)

    @property
    def freed_in_forward(self) -> PerBlock[Bool]:
        """Freed during a call of a model."""
        return _truths(self.freed == Phase.FORWARD)

    @property
    def freed_in_backward(self) -> PerBlock[Bool]:
        """While backward ran."""
        return _truths(self.freed == Phase.BACKWARD)

    @property
    def freed_in_loop(self) -> PerBlock[Bool]:
        """Outside forward, backward and optimizer."""
        return _truths(self.freed == Phase.OTHER)

    @property
    def torch_says_parameter(self) -> PerBlock[Bool]:
        """By torch's data flow."""
        return _truths(self.category == Category.PARAMETER)

    @property
    def torch_says_input(self) -> PerBlock[Bool]:
        """By torch's data flow."""
        return _truths(self.category == Category.INPUT)

    @property
    def torch_says_activation(self) -> PerBlock[Bool]:
        """By torch's data flow."""
        return _truths(self.category == Category.ACTIVATION)


def _truths(column: PerBlock[Bool]) -> PerBlock[Bool]:
    return np.asarray(column, np.bool_)
