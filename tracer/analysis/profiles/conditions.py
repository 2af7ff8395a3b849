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


def _is(column: str, *values: int) -> property:
    """[B] whether a column has one of these values."""
    return property(lambda facts: np.isin(getattr(facts, column), values))


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

    has_no_role = _is("role", NONE)  # No live tensor was observed at its address

    @property
    def was_named(self) -> PerBlock[Bool]:
        """A live tensor that the training names lay at its address."""
        return np.isin(self.role, (NONE, Role.SAVED, Role.WORKSPACE), invert=True)

    was_saved_before = _is("role", Role.SAVED)  # A graph from before the recording keeps it
    is_librarys = _is("role", Role.WORKSPACE)  # A library's workspace of its size was observed at its address

    @property
    def is_observed_batch(self) -> PerBlock[Bool]:
        """A model was called with it, or it is a leaf that nobody trains."""
        return np.asarray(np.isin(self.role, BATCH) | ((self.role == Role.LEAF) & ~self.is_trained), np.bool_)

    is_observed_argument = _is("role", Role.ARGUMENT)
    """A model was called with it, and nobody said that it is the batch."""
    is_observed_gradient = _is("role", Role.GRADIENT)  # A parameter's .grad lay there
    is_lent = _is("role", Role.PARAMETER, Role.ARGUMENT)
    """Known as a parameter or an argument, thus only while the program holds it as such."""
    not_seen_made = _is("made", NONE)  # Allocated before the recording, or where the profiler does not record
    made_in_forward = _is("made", Phase.FORWARD)  # Allocated during a call of a model
    made_in_backward = _is("made", Phase.BACKWARD)  # By autograd, or by what it called
    made_in_optimizer = _is("made", Phase.OPTIMIZER)  # Allocated during an optimizer's step
    made_in_loop = _is("made", Phase.OTHER)  # Outside forward, backward and optimizer
    freed_in_backward = _is("freed", Phase.BACKWARD)  # While backward ran
    freed_in_loop = _is("freed", Phase.OTHER)  # Outside forward, backward and optimizer
    torch_says_parameter = _is("category", Category.PARAMETER)  # By torch's data flow
    torch_says_input = _is("category", Category.INPUT)  # By torch's data flow
