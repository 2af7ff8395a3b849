"""Values on the null GPU, where a number decides a size: what is computed on the host, what is drawn, what was read.

known_ranges      which bytes of device memory hold values
device_bytes      device memory as the host sees it
draws             numbers in place of those that a kernel would have made
device_values     the three together: what an operator finds in memory, and what it leaves
operators         what may be computed, and what an operator writes
answers           values given for lines, as they are written
device_reads      every value that the program read, by line; what ends a loop without end
compute           an operator's results on the host
truncated         how often normal numbers within bounds are drawn again
collectives       what torch.distributed leaves in memory is known as what it was given
sizes             operators whose values decide the size of their result
kernels           kernels in front of torch's own
switch            on and off
"""
