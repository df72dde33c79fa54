"""No tensor leaves a process by another way than packed: the platform's own pickles refuse it by name, and a process that
calls Ray has no torch, so that nothing in it can be a tensor.

Not checked: packing itself (test_transport.py), and what a job's own queues and data loaders do.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from tests.policies.conftest import Program

from trialplane import errors
from trialplane.policies import pickling
from trialplane.training import mapping


def holding(tensor: Any) -> dict[str, Any]:
    return {"options": [{"weights": (1, tensor)}]}


def test_a_tensor_in_a_message_of_ours_is_refused_by_name() -> None:
    import torch

    said = r"the work would send a torch\.Tensor of shape \(2, 3\), torch\.bfloat16 on cpu, to another process.*numpy"
    with pytest.raises(errors.TransportError, match=said):
        pickling.dumps(holding(torch.zeros(2, 3, dtype=torch.bfloat16)), "the work")
    with pytest.raises(errors.TransportError, match=r"torch\.Tensor of shape"):
        pickling.dumps(holding(torch.nn.Linear(2, 2)), "the work")


def test_other_messages_are_what_pickle_makes_of_them() -> None:
    message = holding(Path("/data"))
    assert pickle.loads(pickling.dumps(message, "the work")) == message


def test_a_tensor_for_a_function_that_maps_is_refused(tmp_path: Path) -> None:
    import datasets
    import torch

    rows = datasets.Dataset.from_dict({"x": [1, 2]})
    rows.save_to_disk(tmp_path / "rows")
    stored = datasets.load_from_disk(str(tmp_path / "rows"))
    with pytest.raises(errors.TransportError, match=r"the mapping by .*add would send a torch\.Tensor"):
        mapping.mapped(stored, add, cache=tmp_path / "cache", fn_kwargs={"much": torch.ones(1)}, say=lambda line: None)


def add(row: dict[str, int], much: Any) -> dict[str, int]:
    return {"x": row["x"] + int(much)}


MODULES = """
import sys
import trialplane.controller.session, trialplane.worker.slot_actor, trialplane.worker.slot
print(sorted(name for name in sys.modules if name == "torch" or name.startswith("torch.")))
"""


@pytest.mark.services
def test_a_process_that_calls_ray_has_no_torch(program: Program) -> None:
    assert program(MODULES, env={"RAY_AUTH_MODE": "disabled"}) == "[]"
