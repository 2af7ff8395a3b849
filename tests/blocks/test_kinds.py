"""Each kind has words, and a meaning for whoever reads its name for the first time."""

from __future__ import annotations

from tracer.blocks.kinds import Kind, meaning_of


def test_each_kind_has_a_meaning_of_its_own_that_fits_beside_its_bytes() -> None:
    meanings = [kind.meaning for kind in Kind]
    assert len(set(meanings)) == len(Kind)
    assert max(map(len, meanings)) <= 28


def test_a_meaning_is_found_by_name_and_by_words() -> None:
    for kind in Kind:
        assert meaning_of(kind.name) == meaning_of(kind.words) == kind.meaning
    assert meaning_of("stream 7") == ""
