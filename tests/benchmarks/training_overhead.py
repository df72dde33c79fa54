"""What the platform's part of a training loop costs a step: the order of batches, the meter, checkpoints in the background.

One process on one core, so that the writer of checkpoints has a core as it has beside a GPU. The jobs' whole loops, with
their ranks, are not measured here.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks.rows import Goal, Row
from tests.benchmarks.workplace import Workplace


def measure(place: Workplace) -> Iterator[Row]:
    """The loop with and without the platform, in turn; and the parts by themselves."""
    place.say("training_overhead: both loops in turn")
    arguments = {
        "scratch": str(place.scratch / "training"),
        "rounds": place.repeats(15, 2),
        "steps": place.size(50, 4),
        "width": place.size(1024, 64),
        "state_mib": place.size(512, 4),
    }
    taken = place.call("training_steps", arguments, timeout=900)
    every, mib = arguments["steps"], taken["loop_state_mib"]
    what = f"a step of {taken['step_ms']:.0f} ms with order, meter and a checkpoint of {mib:.0f} MiB each {every} steps"
    yield Row("training_overhead", what, "%", tuple(taken["overhead"]), goal=Goal(value=1), note="over the bare loop")
    what = f"saving a state of {arguments['state_mib']} MiB stops the step for"
    yield Row("training_overhead", what, "ms", tuple(taken["save"]), "torch.save and fsync", tuple(taken["torch_save"]))
    yield Row("training_overhead", "… until it is complete", "ms", tuple(taken["complete"]))
    what = "a rank's share of a global batch of 256 of 14.8 M samples"
    yield Row("training_overhead", what, "µs", tuple(taken["order"]), "a slice of randperm", tuple(taken["randperm"]))
    what = "memory of the order of 14.8 M samples, per rank"
    yield Row(
        "training_overhead",
        what,
        "MiB",
        (taken["order_mib"],),
        "randperm",
        (taken["randperm_mib"],),
        words=("smaller", "larger"),
    )
    yield Row("training_overhead", "the meter's part of a step without a line", "µs", tuple(taken["meter"]))
