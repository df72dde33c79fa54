"""Hydra's sweeps as studies of trialplane: `python train.py -m hydra/sweeper=trialplane lr='interval(1e-5,1e-1)'`.

Hydra finds this package by its place in `hydra_plugins`, and executes each of its modules at each start but those whose
names begin with _. So nothing here imports trialplane but in functions.
"""
