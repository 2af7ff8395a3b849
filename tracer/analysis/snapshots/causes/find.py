"""All causes, in the order in which they are asked about: what nobody needs first, then what has a price."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from tracer.analysis.snapshots.causes.activations import (
    attention_matrix,
    decoding_at_full_size,
    graph_of_gradient,
    largest_line,
    logits,
    long_batch,
    variables_over_the_step,
)
from tracer.analysis.snapshots.causes.caches import data_on_device, kv_cache
from tracer.analysis.snapshots.causes.case import Case, Cause
from tracer.analysis.snapshots.causes.copies import (
    checkpoint_left,
    copies_of_weights,
    frozen_models,
    gathered_whole,
    gradients_beside_buckets,
    other_models,
)
from tracer.analysis.snapshots.causes.earlier_failure import held_by_traceback
from tracer.analysis.snapshots.causes.evaluation import (
    evaluation_with_gradients,
    retained_graphs,
    untrained_graphs,
)
from tracer.analysis.snapshots.causes.growth import grown_by_cat, growth
from tracer.analysis.snapshots.causes.optimizer import (
    gradient_of_embedding,
    gradients_freed_late,
    gradients_of_samples,
    optimizer_temporaries,
    state_to_come,
)
from tracer.analysis.snapshots.causes.precision import autocast_copies, float64, one_hot
from tracer.analysis.snapshots.causes.repeated_parts import repeated_parts
from tracer.analysis.snapshots.causes.reserving import emptied_cache, fragmentation, one_request, stranded_in_streams
from tracer.analysis.snapshots.modelled import Modelled

_OF_BLOCKS: Final[tuple[Callable[[Case], Iterator[Cause]], ...]] = (
    held_by_traceback,
    growth,
    grown_by_cat,
    evaluation_with_gradients,
    untrained_graphs,
    retained_graphs,
    autocast_copies,
    checkpoint_left,
    other_models,
    variables_over_the_step,
    float64,
    graph_of_gradient,
    gradients_freed_late,
    one_hot,
    gradients_of_samples,
    logits,
    optimizer_temporaries,
    state_to_come,
    gradient_of_embedding,
    attention_matrix,
    decoding_at_full_size,
    copies_of_weights,
    frozen_models,
    gathered_whole,
    gradients_beside_buckets,
    data_on_device,
    kv_cache,
    long_batch,
    one_request,
    repeated_parts,
    largest_line,
)
_OF_RESERVING: Final[tuple[Callable[[Case, Modelled], Iterator[Cause]], ...]] = (
    stranded_in_streams,
    fragmentation,
    emptied_cache,
)


def causes_of(case: Case, modelled: Modelled) -> list[Cause]:
    """Every cause that holds, the most avoidable first."""
    found = [cause for ask in _OF_BLOCKS for cause in ask(case)]
    found += [cause for look in _OF_RESERVING for cause in look(case, modelled)]
    return found
