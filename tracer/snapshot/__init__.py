"""Allocator snapshots of any age and machine, loaded safely and replayed into columns.

`load.load_snapshot` is the door; `columns` says what comes out of it; `replay.replay` turns a trace into lives of
blocks. The modules that read the file itself (`files`, `stacks`, `rows`, `reader`) run in a process of their own and
use the standard library alone, so that this process starts at once.
"""
