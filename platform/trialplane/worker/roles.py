"""The functions of a trial's process for each role of a slot. Only this module refers to all roles.

`python -m trialplane.worker.roles FD PARENT` is the process of a spawned trial.
"""

from __future__ import annotations

import sys

from trialplane import policies
from trialplane.wire import records
from trialplane.worker import channel, trial


def role_function(config: records.SlotConfig) -> trial.RoleFunction:
    """Return the function that the trial processes of a slot call, and import the modules of its role only."""
    if trial.has_ranks(config):
        from trialplane.worker.ranks import supervisor  # a trial of one process needs no supervisor

        return supervisor.perform
    if config.role != "trial":
        from trialplane.worker.collect import serving  # imports numpy, which a trial of a study may never need

        return serving.perform
    return trial.perform


if __name__ == "__main__":
    policies.apply_all()
    descriptor, parent_pid = map(int, sys.argv[1:])
    trial.run_and_end(None, channel.open_trial_channel(descriptor), parent=parent_pid, role_function=role_function)
