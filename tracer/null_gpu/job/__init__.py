"""One rank of a job alone: what torch.distributed is told of the others, and which ranks are worth a run.

place         the rank, its folder and its variables, as torchrun sets them; which ranks of a job can differ
store         answers every key as if all ranks had come; objects that ranks give each other, through files
lone_rank     puts the store, the groups and the objects in place while a program runs
"""
