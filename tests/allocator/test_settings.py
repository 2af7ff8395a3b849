"""Settings as PYTORCH_CUDA_ALLOC_CONF spells them: the same text means the same to torch and to us."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.allocator.settings import AllocatorSettings, parse_settings, recorded_settings
from tracer.errors import SettingsError

MIB = 1 << 20
ACCEPTED = [
    "",
    "expandable_segments:True",
    "expandable_segments:False,",
    " max_split_size_mb : 30 , expandable_segments : True ",
    "max_split_size_mb:20",
    "max_split_size_mb:+30",
    "large_segment_size_mb:11",
    "large_segment_size_mb:30,max_split_size_mb:30",
    "max_non_split_rounding_mb:21",
    "garbage_collection_threshold:0.6,max_split_size_mb:128",
    "per_process_memory_fraction:0.5",
    "per_process_memory_fraction:1.0",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[]",
    "roundup_power2_divisions:[64:8,256:4,1024:4,>:1]",
    "roundup_power2_divisions:[256:1,512:2,>:4]",
    "roundup_power2_divisions:[>:8]",
    "roundup_power2_divisions:[>:2,4:8]",
    "roundup_power2_divisions:[64:8,32:2]",
    "roundup_power2_divisions:[131072:8]",
    "roundup_power2_divisions:8,roundup_power2_divisions:[64:2]",
    "backend:native",
    "release_lock_on_cudamalloc:True,pinned_num_register_threads:8,pinned_use_background_threads:True",
    "expandable_segments_reserve_by_class:[serving:0.25,other:0.5]",
    "throw_on_cudamalloc_oom:True",
]
REFUSED = [
    ("max_split_size_mb:10", "max_split_size_mb is 10, and torch takes only 20 or more."),
    ("large_segment_size_mb:10", "large_segment_size_mb is 10, and torch takes only more than 10."),
    ("max_split_size_mb:25,large_segment_size_mb:30", "max_split_size_mb is 25, and torch takes only 30 or more."),
    (
        "large_segment_size_mb:30,max_non_split_rounding_mb:25",
        "max_non_split_rounding_mb is 25, and torch takes only 30 or more.",
    ),
    ("roundup_power2_divisions:3", "roundup_power2_divisions is 3, which is no power of two."),
    ("roundup_power2_divisions:0", "roundup_power2_divisions is 0, which is no power of two."),
    ("roundup_power2_divisions:[1:2,>:3]", "roundup_power2_divisions has 3 divisions, which is no power of two."),
    ("roundup_power2_divisions:[3:1]", "roundup_power2_divisions has sizes from 3 MiB on, which is no power of two."),
    ("roundup_power2_divisions:[256:1", "roundup_power2_divisions has no closing bracket."),
    (
        "garbage_collection_threshold:1.5",
        "garbage_collection_threshold is 1.5, and torch takes only what lies between 0 and 1.",
    ),
    (
        "garbage_collection_threshold:nan",
        "garbage_collection_threshold is nan, and torch takes only what lies between 0 and 1.",
    ),
    ("per_process_memory_fraction:2", "per_process_memory_fraction is 2, and torch takes only 0 to 1."),
    ("expandable_segments:true", "expandable_segments is true, not True or False."),
    ("expandable_segments", "The setting 'expandable_segments' is not a name, a colon and a value."),
    ("expandable_segments=True", "The setting 'expandable_segments=True' is not a name, a colon and a value."),
    ("max_split_size_mb:", "The setting 'max_split_size_mb:' is not a name, a colon and a value."),
    ("max_split_size_mb:abc", "max_split_size_mb is abc, not a whole number of up to 64 bits."),
    ("foo:1", "torch's allocator has no setting 'foo'."),
    ("backend:cudaMallocAsync", "backend:cudaMallocAsync is another allocator than the caching allocator of torch."),
    ("pinned_num_register_threads:3", "pinned_num_register_threads is 3, which is no power of two up to 128."),
    ("pinned_reserve_segment_size_mb:0", "pinned_reserve_segment_size_mb is 0, and torch takes only more."),
    (",", "',' has no setting in it."),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[text for text, _ in REFUSED])
def test_what_torch_refuses_is_refused_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as error:
        parse_settings(text)
    assert str(error.value) == message
    assert error.value.hint.endswith((".", '"', "..."))


def test_a_snapshot_tells_its_settings() -> None:
    recorded = {
        "PYTORCH_CUDA_ALLOC_CONF": "large_segment_size_mb:40,expandable_segments:False",
        "expandable_segments": True,  # switched on later
        "max_split_size": 64 * MIB,
        "garbage_collection_threshold": 0.5,
        "per_process_memory_fraction": 0.25,
        "roundup_power2_divisions": {"1": 4, "2": 8},
    }
    found = recorded_settings(recorded)
    assert found.expandable_segments and found.per_process_memory_fraction == 0.25
    assert (found.large_segment_size, found.max_split_size) == (40 * MIB, 64 * MIB)
    assert found.roundup_power2_divisions[:3] == (4, 8, 0)


@pytest.mark.parametrize(
    "recorded",
    [
        {},
        {"PYTORCH_CUDA_ALLOC_CONF": "a_setting_of_torch_9:yes"},
        {"max_split_size": -1, "garbage_collection_threshold": 0.0, "roundup_power2_divisions": {"1": 3}},
    ],
)
def test_what_a_snapshot_does_not_tell_is_the_default(recorded: dict[str, object]) -> None:
    assert recorded_settings(recorded) == AllocatorSettings()


# ---- torch itself ----------------------------------------------------------------------------------------------------


def torch_accepts(text: str) -> bool:
    import torch

    forget()
    try:
        torch._C._accelerator_setAllocatorSettings(text)
    except (ValueError, RuntimeError, IndexError):
        return False
    return True


def forget() -> None:
    """Torch keeps the size of large segments from one call to the next."""
    import torch

    torch._C._accelerator_setAllocatorSettings("large_segment_size_mb:20,max_non_split_rounding_mb:20")
    torch._C._accelerator_setAllocatorSettings("")


def torchs_divisions(text: str) -> list[int]:
    """What torch makes of the divisions, asked of its library, since Python cannot ask."""
    import torch

    assert torch_accepts(text)
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    try:
        ask = library["_ZN3c1016CachingAllocator26AcceleratorAllocatorConfig24roundup_power2_divisionsEm"]
    except AttributeError:
        pytest.skip("this torch does not say how it rounds")
    ask.restype, ask.argtypes = ctypes.c_size_t, [ctypes.c_size_t]
    return [ask(1 << (20 + interval)) for interval in range(16)]


@pytest.fixture(autouse=True)
def restored() -> object:
    """Torch's settings are of the process; later tests must find the defaults."""
    yield
    import sys

    if "torch" in sys.modules:
        forget()


@pytest.mark.parametrize("text", ACCEPTED)
def test_what_is_accepted_torch_accepts(text: str) -> None:
    parse_settings(text)
    assert torch_accepts(text)


@pytest.mark.parametrize("text", [text for text, _ in REFUSED])
def test_what_is_refused_torch_refuses(text: str) -> None:
    assert not torch_accepts(text)


@pytest.mark.parametrize("text", [text for text in ACCEPTED if "roundup" in text])
def test_divisions_are_torchs(text: str) -> None:
    assert list(parse_settings(text).roundup_power2_divisions) == torchs_divisions(text)


KEYS = ["expandable_segments", "max_split_size_mb", "large_segment_size_mb", "garbage_collection_threshold", "x"]
VALUES = ["True", "False", "0", "10", "20", "21", "300", "0.5", "1", "[1:2]", "", "[", "]", "4"]


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES)), max_size=3))
def test_any_text_is_read_or_refused_and_torch_refuses_no_more(pairs: list[tuple[str, str]]) -> None:
    text = ",".join(f"{key}:{value}" for key, value in pairs)
    try:
        parse_settings(text)
    except SettingsError:
        return
    assert torch_accepts(text)
