"""The work of a trial's process, by the role of its slot: the one module with all roles.

`python -m trialplane.worker.roles FD PARENT` is a trial process by spawn.
"""

from __future__ import annotations

import sys

from trialplane import policies
from trialplane.wire import records
from trialplane.worker import channel, trial


def of(config: records.SlotConfig) -> trial.Role:
    """Return the work of the processes of such a slot; import only the modules of its role."""
    if trial.has_ranks(config):
        from trialplane.worker.ranks import supervisor  # a trial of one process needs no supervisor

        return supervisor.perform
    if config.role != "trial":
        from trialplane.worker.collect import serving  # numpy, which a trial of a study may never import

        return serving.perform
    return trial.perform


if __name__ == "__main__":
    policies.apply_all()
    trial.run_and_end(None, channel.of_trial(int(sys.argv[1])), int(sys.argv[2]), of)
