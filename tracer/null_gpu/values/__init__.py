"""Values on the null GPU, where a number decides a size: what is computed on the host, what is drawn, what was read.

device_values     what an operator finds in memory, and what it leaves; numbers in place of those of a kernel
operators         what may be computed, and what an operator writes
answers           values given for lines, as they are written
device_reads      every value that the program read, by line; what ends a loop without end
compute           an operator's results on the host
sizes             operators whose values decide the size of their result
kernels           kernels in front of torch's own
switch            on and off
"""
