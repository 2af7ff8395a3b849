"""A JSON object has every field of what it is made of: none is forgotten when one is added."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from typing import get_type_hints

import pytest

from tests.exporters.page import page_samples
from tracer.analysis.peak_row import PeakRow
from tracer.analysis.profiles.allocator_count import CountedParts
from tracer.analysis.profiles.peak import AllocatorPeak
from tracer.exporters.json_documents.peak import AllocatorJson, CountedJson
from tracer.exporters.json_documents.row import RowJson, row_json
from tracer.exporters.page import model as page_model
from tracer.exporters.page import payload as page_payload
from tracer.exporters.page.data import page_data


def test_a_row_has_all_its_fields_in_their_order() -> None:
    row = page_samples.peak_row(12, line=7, name="fc.weight", requested_bytes=11)
    assert list(row_json(row).items()) == list(asdict(row).items())


@pytest.mark.parametrize(
    ("payload", "finding"),
    [
        (RowJson, PeakRow),
        (CountedJson, CountedParts),
        (AllocatorJson, AllocatorPeak),
        (page_payload.MarkJson, page_model.Mark),
        (page_payload.BandJson, page_model.Band),
        (page_payload.KindBytesJson, page_model.KindBytes),
        (page_payload.LostTrackJson, page_model.PageLostTrack),
        (page_payload.TimingJson, page_model.StepTiming),
        (page_payload.SlowModuleJson, page_model.SlowModule),
        (page_payload.CellJson, page_model.FileCell),
        (page_payload.SectionJson, page_model.Section),
    ],
)
def test_payloads_have_the_fields_of_the_findings(payload: type, finding: type) -> None:
    assert list(get_type_hints(payload)) == [one.name for one in fields(finding)]


@pytest.mark.parametrize("page", [page_samples.small_page(), page_samples.hostile_page(), page_samples.empty_page()])
def test_the_page_has_the_keys_that_its_type_says(page: page_model.Page) -> None:
    data = page_data(page)
    assert list(data) == list(get_type_hints(page_payload.PageJson))
    assert list(data["timeline"]) == list(get_type_hints(page_payload.TimelineJson))
    for section in page_data(replace(page, sections=(page_model.Section("x", is_alarming=True),)))["sections"]:
        assert list(section) == list(get_type_hints(page_payload.SectionJson))
    if data["peak"] is not None:
        assert list(data["peak"]) == list(get_type_hints(page_payload.PeakJson))
