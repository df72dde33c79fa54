"""Collections: the contexts of a worker and a learner (`worker`, `learner`), and the processes and files behind them.

In each iteration, workers compute the results of units, pieces of work such as games. The learner trains on the results, and
its weights go to the workers of the next iteration.

`serving` runs a trial's process in either role, `exchange` is the slot's side of it; results pass as files in shared memory
(`segments`, `memory`). `states` keeps the checkpoint of each iteration, `shards` is a learner that writes files.
Must not import torch: the job imports what it needs.
"""
