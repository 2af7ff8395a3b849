"""One rank of a job alone: what torch.distributed is told of the others, and which ranks are worth a run.

place         the rank, its folder and its variables, as torchrun sets them; which ranks of a job can differ
store         answers every key as if all ranks had come; objects that ranks give each other, through files
lone_rank     puts the store, the groups and the objects in place while a program runs

What a rank asks of others is answered in its own process:

collectives                        each slot has this rank's own bytes
broadcasts of up to 4,096 integers,
lists of objects                   what that rank gave at the same call if it ran before, else this rank's own
an all-to-all of uneven parts      what this rank gives to each other, cut or repeated
shapes between pipeline stages     what the nearest earlier rank that ran has sent
keys of the store                  what ranks before have set, else zeros; barriers and waits end at once
symmetric memory                   memory of this process in the place of the others'
vLLM's queues in shared memory     left out: objects go by torch.distributed
`mp.spawn` of a node's processes   goes on as this rank, in this process
"""
