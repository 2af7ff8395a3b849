"""The table of cards, against what NVIDIA publishes of each, and the spellings that people use."""

from __future__ import annotations

import pytest

from tracer.errors import TracerError
from tracer.null_gpu.cards import CARDS, CONTEXT_BYTES, devices_of, named_card
from tracer.units import GIB, KIB, MIB

# Of each: memory in GB as on the box, CUDA cores, MB of L2 cache, compute capability.
# Source: NVIDIA's data sheets and architecture white papers; compute capabilities from developer.nvidia.com/cuda-gpus.
PUBLISHED: dict[str, tuple[float, int, float, str]] = {
    "T4": (16, 2560, 4, "7.5"),
    "V100-16GB": (16, 5120, 6, "7.0"),
    "V100-32GB": (32, 5120, 6, "7.0"),
    "RTX-2060": (6, 1920, 3, "7.5"),
    "RTX-2060-Super": (8, 2176, 4, "7.5"),
    "RTX-2070": (8, 2304, 4, "7.5"),
    "RTX-2070-Super": (8, 2560, 4, "7.5"),
    "RTX-2080": (8, 2944, 4, "7.5"),
    "RTX-2080-Super": (8, 3072, 4, "7.5"),
    "RTX-2080-Ti": (11, 4352, 5.5, "7.5"),
    "RTX-3050": (8, 2560, 2, "8.6"),
    "RTX-3060": (12, 3584, 3, "8.6"),
    "RTX-3060-Ti": (8, 4864, 4, "8.6"),
    "RTX-3070": (8, 5888, 4, "8.6"),
    "RTX-3070-Ti": (8, 6144, 4, "8.6"),
    "RTX-3080": (10, 8704, 5, "8.6"),
    "RTX-3080-12GB": (12, 8960, 6, "8.6"),
    "RTX-3080-Ti": (12, 10240, 6, "8.6"),
    "RTX-3090": (24, 10496, 6, "8.6"),
    "RTX-3090-Ti": (24, 10752, 6, "8.6"),
    "RTX-4060": (8, 3072, 24, "8.9"),
    "RTX-4060-Ti": (8, 4352, 32, "8.9"),
    "RTX-4060-Ti-16GB": (16, 4352, 32, "8.9"),
    "RTX-4070": (12, 5888, 36, "8.9"),
    "RTX-4070-Super": (12, 7168, 48, "8.9"),
    "RTX-4070-Ti": (12, 7680, 48, "8.9"),
    "RTX-4070-Ti-Super": (16, 8448, 48, "8.9"),
    "RTX-4080": (16, 9728, 64, "8.9"),
    "RTX-4080-Super": (16, 10240, 64, "8.9"),
    "RTX-4090": (24, 16384, 72, "8.9"),
    "RTX-5060": (8, 3840, 32, "12.0"),
    "RTX-5060-Ti": (8, 4608, 32, "12.0"),
    "RTX-5060-Ti-16GB": (16, 4608, 32, "12.0"),
    "RTX-5070": (12, 6144, 48, "12.0"),
    "RTX-5070-Ti": (16, 8960, 48, "12.0"),
    "RTX-5080": (16, 10752, 64, "12.0"),
    "RTX-5090": (32, 21760, 96, "12.0"),
    "A4000": (16, 6144, 4, "8.6"),
    "A5000": (24, 8192, 6, "8.6"),
    "A6000": (48, 10752, 6, "8.6"),
    "RTX-6000-Ada": (48, 18176, 96, "8.9"),
    "RTX-PRO-6000": (96, 24064, 128, "12.0"),
    "A10": (24, 9216, 6, "8.6"),
    "A10G": (24, 10240, 6, "8.6"),
    "A40": (48, 10752, 6, "8.6"),
    "L4": (24, 7424, 48, "8.9"),
    "L40": (48, 18176, 96, "8.9"),
    "L40S": (48, 18176, 96, "8.9"),
    "A100-40GB": (40, 6912, 40, "8.0"),
    "A100-80GB": (80, 6912, 40, "8.0"),
    "H100": (80, 16896, 50, "9.0"),
    "H100-PCIe": (80, 14592, 50, "9.0"),
    "H100-NVL": (94, 16896, 50, "9.0"),
    "H100-96GB": (96, 16896, 50, "9.0"),
    "H200": (141, 16896, 50, "9.0"),
    "B200": (180, 18944, 126, "10.0"),
    "GB200": (186, 19456, 126, "10.0"),
    "B300": (288, 18944, 126, "10.3"),
    "GB300": (288, 19456, 126, "10.3"),
}
# Threads and KB of shared memory of a multiprocessor, KB of a block, CUDA cores of a multiprocessor.
# Source: CUDA C++ Programming Guide, technical specifications and arithmetic throughput per compute capability.
OF_CAPABILITY: dict[str, tuple[int, int, int, int]] = {
    "7.0": (2048, 96, 96, 64),
    "7.5": (1024, 64, 64, 64),
    "8.0": (2048, 164, 163, 64),
    "8.6": (1536, 100, 99, 128),
    "8.9": (1536, 100, 99, 128),
    "9.0": (2048, 228, 227, 128),
    "10.0": (2048, 228, 227, 128),
    "10.3": (2048, 228, 227, 128),
    "12.0": (1536, 100, 99, 128),
}


def test_every_card_has_its_published_figures_here() -> None:
    assert [card.label for card in CARDS] == list(PUBLISHED)


@pytest.mark.parametrize("label", PUBLISHED)
def test_a_card_is_as_published(label: str) -> None:
    card = devices_of(label).card
    memory_gb, cores, l2_mb, capability = PUBLISHED[label]
    threads, shared_kb, shared_of_block_kb, cores_of_one = OF_CAPABILITY[capability]
    assert ".".join(map(str, card.capability)) == capability
    assert card.num_sms == cores // cores_of_one
    assert card.l2_bytes == l2_mb * MIB
    assert (card.threads_per_sm, card.shared_memory_per_sm_bytes) == (threads, shared_kb * KIB)
    assert card.shared_memory_bytes == shared_of_block_kb * KIB
    # ECC takes a sixteenth of GDDR6, the driver some hundred MiB; "GB" of HBM3e may be decimal ones.
    assert 0.90 * memory_gb * GIB <= card.memory_bytes <= memory_gb * GIB
    assert card.usable_bytes == card.memory_bytes - CONTEXT_BYTES


SPELLINGS = {
    "H100": ("h100", "H100 80GB", "NVIDIA H100 80GB HBM3", "h100-sxm", "H100-SXM5-80GB"),
    "H100-PCIe": ("H100 PCIe",),
    "H100-NVL": ("h100_nvl",),
    "H100-96GB": ("H100 96 GB",),
    "RTX-4090": ("rtx4090", "RTX-4090", "GeForce RTX 4090", "4090", "RTX 4090 24GB"),
    "RTX-4060-Ti-16GB": ("RTX 4060 Ti 16GB",),
    "RTX-4060-Ti": ("4060ti",),
    "RTX-3080-12GB": ("RTX 3080 12GB",),
    "RTX-6000-Ada": ("rtx 6000 ada",),
    "A100-40GB": ("A100-40", "NVIDIA A100-SXM4-40GB", "a100-40g"),
    "A100-80GB": ("a100", "NVIDIA A100 80GB PCIe"),
    "A6000": ("RTX A6000",),
    "T4": ("Tesla T4", "T4 16GB"),
    "V100-32GB": ("v100-32",),
    "GB300": ("gb300",),
    "H200": ("H200 SXM 141GB",),
    "B200": ("B200 192 GB",),
    "L40S": ("l40s_48gb",),
}


def test_cards_are_spelled_as_people_write_them_or_by_their_own_label() -> None:
    found = {text: named_card(text) for texts in SPELLINGS.values() for text in texts}
    assert {text: card and card.label for text, card in found.items()} == {
        text: label for label, texts in SPELLINGS.items() for text in texts
    }
    assert all(named_card(card.label) is card for card in CARDS)


def test_on_takes_a_number_of_cards_and_another_memory() -> None:
    assert devices_of("8xH100").count == 8
    few = devices_of(" 2 x rtx 4090 : 20GiB ")
    assert (few.count, few.card.label, few.card.memory_bytes) == (2, "RTX-4090", 20 * GIB)
    assert few.words == "2 x RTX-4090, 20.00 GiB each"
    assert devices_of("h100:40GiB").card.capability == (9, 0)
    assert devices_of("h100").words == "H100, 79.10 GiB"
    assert devices_of("16GiB").words == "a GPU, 16.00 GiB"


@pytest.mark.parametrize(
    ("text", "error", "hint"),
    [
        ("rtx 4095", "There is no card rtx 4095", "RTX-4090"),
        ("h1000", "There is no card h1000", "H100"),
        ("help", "There is no card help", ", ".join(card.label for card in CARDS)),
        ("", "There is no card", "RTX-3090"),
        ("h100:40", "40 has no unit.", "h100:40GiB"),
        ("h100:", "is not a size.", "h100:40GiB"),
        ("MI300X", "MI300X is AMD's", "A100 with that memory"),
        ("8xMI300X", "8xMI300X is AMD's", "A100 with that memory"),
        ("7900 XTX", "7900 XTX is AMD's", "A100 with that memory"),
        (
            "RTX 4090 48GB",
            "There is no card RTX 4090 48GB",
            "The RTX-4090 has 23.64 GiB; one with 48 GiB is RTX-4090:48GiB",
        ),
        ("0xh100", "0xh100: a job has 1 to 131,072 devices.", "8xh100"),
        ("999999xh100", "999999xh100: a job has 1 to 131,072 devices.", "8xh100"),
        ("1" * 5000 + "xh100", "...11111xh100: a job has 1 to 131,072 devices.", "8xh100"),
        ("h100:99999TiB", "99999TiB is more than 64.00 TiB, the largest size here.", "h100:40GiB"),
        ("99999TiB", "99999TiB is more than 64.00 TiB, the largest size here.", "24GiB"),
    ],
)
def test_what_is_no_card_is_said_with_the_nearest_names(text: str, error: str, hint: str) -> None:
    with pytest.raises(TracerError) as raised:
        devices_of(text)
    assert error in str(raised.value) and hint in raised.value.hint


def test_a_size_alone_is_a_card_without_a_name() -> None:
    card = devices_of("24GiB").card
    assert (card.label, card.memory_bytes) == ("", 24 * GIB)
    with pytest.raises(TracerError, match="24 has no unit"):
        devices_of("24")
