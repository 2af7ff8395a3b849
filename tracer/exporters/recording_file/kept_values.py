"""What a program read of a device that computes nothing, from a recording that may be anybody's."""

from __future__ import annotations

from tracer.capture.values_read import LeftOut, ValueRead, ValuesRead
from tracer.exporters.recording_file.document import Document

_MAX_READS = 100_000


def values_read_from(document: Document | None) -> ValuesRead | None:
    """What was kept of it; None where there was nothing.

    Raises:
        RecordingError: It is not what it should be.
    """
    if document is None:
        return None
    return ValuesRead(
        reads=tuple(_read_from(one) for one in document.documents("reads", at_most=_MAX_READS)),
        left_out=tuple(
            LeftOut(one.text("reason"), one.number("count"))
            for one in document.documents("left_out", at_most=_MAX_READS)
        ),
        num_compiled_buffers=document.number("num_compiled_buffers"),
        unused_answers=document.texts("unused_answers"),
    )


def _read_from(document: Document) -> ValueRead:
    return ValueRead(
        file=document.text("file"),
        line=document.number("line"),
        function=document.text("function"),
        operator=document.text("operator"),
        count=document.number("count"),
        value=document.text("value"),
        known=document.text("known"),
        answered=document.truth("answered"),
        decides_size=document.truth("decides_size"),
        num_empty=document.number("num_empty"),
    )
