"""That Ray says what its object stores hold and spill, in the version that is installed: the calls are its own, not public.

Not checked here: what follows from it (test_crews.py), a Ray that does not start (test_slot_pool.py).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import ray
from tests.controller.conftest import wait_until

from trialplane.controller import ray_session
from trialplane.spec import jobs

ONE_TRIAL = jobs.read({"name": "toy", "kind": "train"}).roles()
STORE = 80 << 20  # the smallest that Ray takes


@pytest.fixture
def small_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    ray_session.connect(ONE_TRIAL, lambda free: STORE)
    yield
    ray_session.disconnect()


@pytest.mark.slow
def test_what_an_object_store_has_no_room_for_is_counted_as_spilled(small_store: None) -> None:
    assert abs(ray_session.store_bytes(ONE_TRIAL) - STORE) < 1 << 20
    assert ray_session.spilled_bytes() == 0
    piece = STORE // 4
    kept = [ray.put(np.zeros(piece, dtype=np.uint8)) for _ in range(2)]
    ray_session.wait(kept, 60)
    assert ray_session.spilled_bytes() == 0, "there is room"
    kept += [ray.put(np.zeros(piece, dtype=np.uint8)) for _ in range(4)]
    wait_until(lambda: (ray_session.spilled_bytes() or 0) >= 2 * piece, "Ray has written to disk what has no room")
    assert len(kept) == 6
