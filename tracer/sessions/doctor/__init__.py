"""Checks of the installation and the device: a name, PASS, FAIL or SKIP, a sentence, and a command that mends.

installed     packages, driver, compiler, folders and variables, asked without torch
loaded        the process that has loaded torch: card, allocator, history, profiler, copies of CUDA
programs      the small trainings, and what they know of their own memory
trained       a training's rows, history and replay beside the allocator's own count
further       out of memory, watch, files, times, kernels, CUDA graphs, DDP
checks        the table of all of them
examine       runs them, those that need torch in processes of their own
"""
