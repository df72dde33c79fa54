"""Collections: what a worker and a learner see (`worker`, `learner`), and the processes and files behind them.

`serving` is what a trial's process does in either role, `exchange` the slot's end of it; results cross as files in shared
memory (`segments`, `memory`). `states` keeps what an iteration leaves to the next, `shards` is a learner that writes files.
Must not import torch: what a job needs is imported by the job.
"""
