"""Torch's rules once more, as naively as they can be written: dictionaries, sets, and loops over (key, version) pairs.

Source: torch/profiler/_memory_profiler.py, pass by pass. Nothing is taken from `tracer`.
"""

from __future__ import annotations

from collections import defaultdict

from tests.programs import Program

Slot = tuple[int, int]
COLUMNS = (
    "PARAMETER", "OPTIMIZER_STATE", "INPUT", "TEMPORARY", "ACTIVATION", "GRADIENT", "AUTOGRAD_DETAIL", None,
)  # fmt: skip


class TorchRules:
    """Categories of a program: `category(key, version)`, and the versions that torch would list: `known`."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.ids = [storage.id for storage in program.storages]
        self.by_id: dict[int, str] = {}
        self.by_key: dict[int, str] = {}
        self.by_version: dict[Slot, str] = {}
        self.named_by_id: set[int] = set()
        self.inputs: list[list[Slot]] = []
        self.outputs: list[list[Slot]] = []
        self.intermediates: list[list[int]] = []
        self.increments: list[list[Slot]] = []
        self._number_versions()
        self._gradients_and_temporaries()
        self._listed(program.parameters, "PARAMETER")
        self._inputs()
        self._parameters_by_data_flow()
        self._activations()
        self._listed(program.optimizer_states, "OPTIMIZER_STATE")
        self._autograd_detail()

    def category(self, key: int, version: int) -> str | None:
        return self.by_id.get(self.ids[key]) or self.by_key.get(key) or self.by_version.get((key, version))

    @property
    def known(self) -> set[Slot]:
        slots = {(key, 0) for key in self.named_by_id}
        for index in range(len(self.program.nodes)):
            slots |= {*self.inputs[index], *self.outputs[index], *((key, 0) for key in self.intermediates[index])}
        return slots

    def _number_versions(self) -> None:
        version: defaultdict[int, int] = defaultdict(int)
        for node in self.program.nodes:
            inputs, outputs, intermediates, increments = [], [], [], []
            for key in sorted(node.reads | node.writes | node.allocates | node.frees):
                allocated, freed, written = key in node.allocates, key in node.frees, key in node.writes
                if allocated and freed:
                    intermediates.append(key)
                elif allocated:
                    outputs.append((key, 0))
                else:
                    inputs.append((key, version[key]))
                    if written and not freed:
                        increments.append((key, version[key]))
                        version[key] += 1
                        outputs.append((key, version[key]))
            self.inputs.append(inputs)
            self.outputs.append(outputs)
            self.intermediates.append(intermediates)
            self.increments.append(increments)
        self.last_version = version

    def _listed(self, keys: set[int], category: str) -> None:
        for key in keys:
            self.by_id[self.ids[key]] = category
            self.named_by_id.add(key)

    def _gradients_and_temporaries(self) -> None:
        self._listed(self.program.gradients, "GRADIENT")
        for keys in self.intermediates:
            for key in keys:
                self.by_key[key] = "TEMPORARY"

    def _depends(self) -> set[int]:
        depends: set[int] = set()
        while True:
            size = len(depends)
            for inputs, outputs in zip(self.inputs, self.outputs, strict=True):
                found = {
                    self.ids[key]
                    for key, version in inputs
                    if self.category(key, version) in ("GRADIENT", "PARAMETER") or self.ids[key] in depends
                }
                if found:
                    depends |= found | {self.ids[key] for key, _ in outputs}
            if len(depends) == size:
                return depends

    def _inputs(self) -> None:
        depends = self._depends()
        produces: set[Slot] = set()
        for inputs, outputs in zip(reversed(self.inputs), reversed(self.outputs), strict=True):
            slots = {*inputs, *outputs}
            if any(self.category(*slot) in ("GRADIENT", "PARAMETER") or slot in produces for slot in slots):
                produces |= slots
        for node, outputs in zip(self.program.nodes, self.outputs, strict=True):
            if node.backward:
                produces -= set(outputs)
        for key, version in produces:
            if self.ids[key] not in depends:
                self.by_version.setdefault((key, version), "INPUT")

    def _parameters_by_data_flow(self) -> None:
        snapshot = self.known
        candidates: set[Slot] = set()
        forward = {slot for slot in snapshot if self.category(*slot) == "INPUT"}
        for node, inputs, outputs in zip(self.program.nodes, self.inputs, self.outputs, strict=True):
            gradients = any(self.category(*slot) == "GRADIENT" for slot in (*inputs, *outputs))
            if not node.backward and not gradients and forward & set(inputs):
                forward |= set(outputs)
                candidates |= set(inputs) - forward
        used: set[Slot] = set()
        for inputs, outputs in zip(reversed(self.inputs), reversed(self.outputs), strict=True):
            if any(self.category(*slot) == "GRADIENT" or slot in used for slot in outputs):
                used |= set(inputs)
        parameter_ids = {self.ids[key] for key, _ in candidates & used} & self._depends()
        self._listed({key for key, _ in snapshot if self.ids[key] in parameter_ids}, "PARAMETER")

    def _activations(self) -> None:
        for node, inputs, outputs in zip(self.program.nodes, self.inputs, self.outputs, strict=True):
            found = {self.category(*slot) for slot in inputs}
            if node.backward or not found & {"INPUT", "ACTIVATION"}:
                continue
            if found <= {"INPUT", "ACTIVATION", "PARAMETER", "TEMPORARY"}:
                for slot in outputs:
                    self.by_version.setdefault(slot, "ACTIVATION")

    def _autograd_detail(self) -> None:
        for node, outputs in zip(self.program.nodes, self.outputs, strict=True):
            if node.backward:
                for key, version in outputs:
                    if version == 0 or self.category(key, version - 1) in (None, "AUTOGRAD_DETAIL"):
                        self.by_version.setdefault((key, version), "AUTOGRAD_DETAIL")

    # ---- the timeline

    def timeline(self, device: int) -> tuple[list[int], list[list[int]]]:
        """Times in ns and bytes by category after each event, counted one event at a time.

        What was there before comes first, with the time of the earliest event (-1000 where there is none).
        """
        program = self.program
        events: list[tuple[int, int, int, list[tuple[str | None, int]]]] = []  # time, order, device, changes
        live: set[tuple[int, int]] = set()
        made_ns: dict[int, int] = {}
        freed_ns: dict[int, int] = {}
        for (time_ns, key, size, where), address in zip(program.allocation_rows(), program.addresses(), strict=True):
            if key >= 0:
                (made_ns if size > 0 else freed_ns)[key] = time_ns
            elif (where, address) in live and size > 0:
                # Torch takes a second allocation at an address as a new version, which changes nothing.
                events.append((time_ns, 3, where, []))
            elif size > 0:
                events.append((time_ns, 2, where, [(None, size)]))
                live.add((where, address))
            else:
                events.append((time_ns, 4, where, [(None, size)]))
                if (where, address) not in live:
                    events.append((-1, 1, where, [(None, -size)]))
                live.discard((where, address))
        for key, storage in enumerate(program.storages):
            if (key, 0) in self.known and key not in made_ns:
                events.append((-1, 1, storage.device, [(self.category(key, 0), storage.size_bytes)]))
        for index, node in enumerate(program.nodes):
            for key in sorted(node.allocates):
                storage = program.storages[key]
                events.append((made_ns[key], 2, storage.device, [(self.category(key, 0), storage.size_bytes)]))
            for key, version in self.increments[index]:
                storage = program.storages[key]
                old, new = self.category(key, version), self.category(key, version + 1)
                changes = [(old, -storage.size_bytes), (new, storage.size_bytes)]
                events.append((program.node_time_ns(index), 3, storage.device, changes))
            for key in sorted(node.frees):
                storage = program.storages[key]
                last = self.category(key, self.last_version[key])
                events.append((freed_ns[key], 4, storage.device, [(last, -storage.size_bytes)]))
        events = sorted((event for event in events if event[2] == device), key=lambda event: event[:2])
        first_ns = min((time_ns for time_ns, *_ in events if time_ns >= 0), default=-1000)
        running = dict.fromkeys(COLUMNS, 0)
        times, rows = [], []
        for time_ns, _, _, changes in events:
            for category, delta in changes:
                running[category] += delta
            times.append(time_ns if time_ns >= 0 else first_ns)
            rows.append(list(running.values()))
        return times, rows
