"""What happened: the only packages that touch a running torch.

`profiler/` reads torch's profiler, `device/` what devices and allocators say of themselves, `objects/` the program's
tensors, modules and optimizers, `sources/` whose line is whose. All of them write columns, as `recording` has them.
"""
