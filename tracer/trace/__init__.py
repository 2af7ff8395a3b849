"""What happened, from a file: chrome traces that torch.profiler wrote anywhere, read in parts into a recording.

text           the bytes of a file, unpacked, with limits
events         the events in its text, some thousands at a time
tables         the events that say something, packed row by row
repeated       events that a file has twice, and counts that it leaves out
host_order     which of them ran on which thread, in which order
places         names of Python functions and the files that they are in
launches       which operator launched what does not say it
recording      the rows as the columns of a `Recording`
load           the door: a path in, a `TraceFile` out
"""
