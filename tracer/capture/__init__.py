"""Recording of a run: the only packages that touch a running torch.

`profiler/` reads torch's profiler, `device/` the counters and histories of devices and allocators, `objects/` the
program's tensors, modules and optimizers, `sources/` source files and the owners of lines. Each of them writes columns,
as `recording` has them.
"""
