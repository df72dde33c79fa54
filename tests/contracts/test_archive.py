"""What the operator reads of a run in the ledger, on a real PostgreSQL: one record, from its submission to its end.

What it writes, submissions and desired states, is in tests/ledger/test_archive.py.
"""

from __future__ import annotations

import pytest
from tests.contracts.conftest import Postgres, make_job, wait_until
from tests.gateway.gateway_site import Site, postgres, site

from trialplane.errors import LedgerCorrupt, RunNotFound
from trialplane.ledger import tables
from trialplane.ledger.archive import Archive
from trialplane.wire.states import RunState

__all__ = ["postgres", "site"]  # fixtures


def test_a_record_is_read_whole(postgres: Postgres) -> None:
    connections = tables.Connections(postgres.new_database())
    archive = Archive(connections.share())
    assert archive.snapshot("toy") is None, "nothing was ever submitted there"
    job = make_job()
    archive.record_run("toy", job, {"submitted": 3.0, "uid": "u"}, b"\0\1\2", new=True)
    archive.change_desired("toy", {"state": RunState.PAUSED, "parallel": 3})
    found = archive.snapshot("toy")
    assert found is not None
    assert (found.job, found.submission) == (job, {"submitted": 3.0, "uid": "u"})
    assert (found.status.state, found.status.trials, found.status.started) == (RunState.PENDING, job.trials, None)
    assert (found.desired.state, found.desired.parallel, found.alive) == (RunState.PAUSED, 3, False)
    assert archive.snapshot("other") is None
    connections.close()


def test_the_digests_of_a_runs_images_add_up(postgres: Postgres) -> None:
    connections = tables.Connections(postgres.new_database())
    archive = Archive(connections.share())
    with pytest.raises(RunNotFound):
        archive.add_images("toy", [("a:1", "sha256:1")])
    archive.record_run("toy", make_job(), {"submitted": 3.0}, b"\0\1\2", new=True)
    assert archive.images("toy") == {}
    for digest in ("sha256:1", "sha256:2", "sha256:1"):
        archive.add_images("toy", [("a:1", digest), ("b:1", "sha256:3")])
    wanted = {"a:1": ("sha256:1", "sha256:2"), "b:1": ("sha256:3",)}
    found = archive.snapshot("toy")
    assert found is not None and found.images == archive.images("toy") == wanted
    connections.close()


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("status", '{"run": "toy"'),
        ("status", '[1]'),
        ("status", '{"run": "toy", "job": "toy", "state": "RUNNING", "trials": "six"}'),
        ("desired", '{"parallel": "six"}'),
        ("job", '{"kind": "hpo"}'),
    ],
)  # fmt: skip
def test_a_damaged_record_says_whose_it_is(postgres: Postgres, column: str, text: str) -> None:
    url = postgres.new_database()
    connections = tables.Connections(url)
    archive = Archive(connections.share())
    archive.record_run("toy", make_job(), {"submitted": 3.0}, b"\0\1\2", new=True)
    postgres.execute(f"UPDATE runs SET {column} = '{text}' WHERE name = 'toy'", url)
    with pytest.raises(LedgerCorrupt, match="the ledger's records of toy cannot be read: "):
        archive.snapshot("toy")
    connections.close()


def test_a_controller_that_works_is_seen_and_that_it_is_gone(site: Site) -> None:
    connections = tables.Connections(site.url)
    archive = Archive(connections.share())
    with site.ledger("toy"):
        found = archive.snapshot("toy")
        assert found is not None and found.alive and found.status.state is RunState.RUNNING
    wait_until(lambda: not archive.is_alive("toy"), "PostgreSQL sees that the controller is gone")
    found = archive.snapshot("toy")
    assert found is not None and not found.alive
    connections.close()
