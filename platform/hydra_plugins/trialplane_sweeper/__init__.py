"""Hydra's sweeps as studies of trialplane: `python train.py -m hydra/sweeper=trialplane lr='interval(1e-5,1e-1)'`.

Hydra finds this package in the namespace `hydra_plugins`. Whenever a Hydra program starts, Hydra imports each module of the
package whose name does not begin with an underscore. So trialplane is imported only inside functions: that keeps such starts
fast.
"""
