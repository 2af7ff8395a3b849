"""Stand-in of `nvidia-smi` on the null GPU, from the variables alone: it imports nothing of this program."""

from __future__ import annotations

import os
import sys

_MIB = 1 << 20


def devices() -> list[dict[str, str]]:
    """Each device's fields, by the names of `--query-gpu`."""
    names = os.environ.get("NULL_GPU_NAME", "").split(";")
    memory = os.environ.get("NULL_GPU_MEMORY", "").split(";")
    capability = os.environ.get("NULL_GPU_CAPABILITY", "").split(";")
    rows = []
    for index in range(int(os.environ.get("NULL_GPU_COUNT", "0"))):
        total = int(memory[index]) // _MIB
        rows.append(
            {
                "index": str(index),
                "name": names[index],
                "gpu_name": names[index],
                "uuid": f"GPU-6e756c6c-2d67-7075-2d64-6576696365{ord('0') + index:02x}",
                "driver_version": "580.00-null",
                "memory.total": f"{total} MiB",
                "memory.used": "0 MiB",
                "memory.free": f"{total} MiB",
                "compute_cap": capability[index],
                "utilization.gpu": "0 %",
                "pci.bus_id": f"00000000:{index + 1:02X}:00.0",
                "count": os.environ["NULL_GPU_COUNT"],
            }
        )
    return rows


def answer(arguments: list[str]) -> list[str]:
    """The lines that a call prints."""
    query = next((word.split("=", 1)[1] for word in arguments if word.startswith("--query-gpu=")), None)
    if query is None:
        if "-L" in arguments or "--list-gpus" in arguments:
            return [f"GPU {device['index']}: {device['name']} (UUID: {device['uuid']})" for device in devices()]
        heading = "null GPU: memory is counted, nothing is computed"
        return [heading, *(f"{device['index']}  {device['name']}  {device['memory.total']}" for device in devices())]
    fields = [field.strip() for field in query.split(",")]
    form = next((word for word in arguments if word.startswith("--format=")), "")
    rows = [[device.get(field, "[N/A]") for field in fields] for device in devices()]
    if "nounits" in form:
        rows = [[value.removesuffix(" MiB").removesuffix(" %") for value in row] for row in rows]
    return ([] if "noheader" in form else [", ".join(fields)]) + [", ".join(row) for row in rows]


if __name__ == "__main__":
    print("\n".join(answer(sys.argv[1:])))
