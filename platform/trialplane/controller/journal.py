"""The MLflow writer's state across restarts: its notes on disk, or what MLflow has if those are lost."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import fcntl
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trialplane.wire import labels

CREATED = "CREATED"  # state of a trial's run until its start is recorded
MARKED = 4096  # bytes of the spool that a mark covers


class Journal:
    """Notes of (kind, key, value), of which the newest counts. Locked by one writer at a time.

    Args:
        file: JSON lines; created if missing.

    Raises:
        BlockingIOError: a former writer still holds it.
    """

    def __init__(self, file: Path) -> None:
        self._file = file.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise
        self._file.seek(0)
        data = self._file.read()
        self.notes = _notes(data.splitlines())
        if data and not data.endswith(b"\n"):
            self._file.write(b"\n")

    def note(self, kind: str, key: str, value: Any) -> None:
        """Adds a note."""
        self._file.write(json.dumps([kind, key, value]).encode() + b"\n")
        self._file.flush()


def tracking_uri(file: Path) -> str | None:
    """Where the run has been recorded so far, or None. Reads the notes without the lock."""
    if not file.exists():
        return None
    with file.open("rb") as lines:
        uri: str | None = _notes(line for line in lines if line.startswith(b'["uri"'))["uri"].get("")
        return uri


def _notes(lines: Iterable[bytes]) -> dict[str, dict[str, Any]]:
    """The newest value of each kind and key."""
    notes: dict[str, dict[str, Any]] = collections.defaultdict(dict)
    for line in lines:
        try:
            kind, key, value = json.loads(line)
            notes[kind][key] = value
        except (ValueError, TypeError):  # a line that a kill or a power cut left incomplete
            continue
    return notes


def mark(events: Path, offset: int) -> str:
    """A digest of the spool's bytes before `offset`, by which a writer checks that it is the spool it has read up to there.

    After a power cut a file may be older than another file's notes about it. "" at offset 0, and for a spool that ends
    before the offset.
    """
    if not offset or not events.exists() or events.stat().st_size < offset:
        return ""
    with events.open("rb") as spool:
        begin = max(0, offset - MARKED)
        spool.seek(begin)
        return hashlib.sha256(spool.read(offset - begin)).hexdigest()


@dataclasses.dataclass
class Found:
    """The attempts that have a run in MLflow.

    Attributes:
        runs: number of the attempt → id of its run.
        whole: numbers of those that are complete. An ended run need not be: the job may have ended it.
    """

    runs: dict[int, str] = dataclasses.field(default_factory=dict)
    whole: set[int] = dataclasses.field(default_factory=set)


def studies(client: Any, experiment: str, run: str, submission: Mapping[str, Any]) -> list[Any]:
    """The runs of a study, the one with entries first: there are several if one of MLflow's responses was lost.

    A deleted run of the same name is another study, which stays in MLflow.

    Args:
        client: MLflow's.
        experiment: id.
        run: the name.
        submission: the facts of it.
    """
    tags = identity(run, submission)
    runs = search(client, experiment, f"tags.`{labels.RUN}` = '{run}' and tags.`{labels.KIND}` = 'study'")
    mine = [study for study in runs if tags.items() <= study.data.tags.items()]
    return sorted(mine, key=lambda study: labels.STATE not in study.data.tags)


def identity(run: str, submission: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of each record in MLflow that belongs to a run, and not to another run of its name."""
    if uid := submission.get(labels.RECORD_UID):
        return {labels.RUN: run, labels.RECORD: str(uid)}
    return {labels.RUN: run, labels.SUBMITTED: moment(float(submission.get("submitted", 0.0)))}


def search(client: Any, experiment: str, condition: str) -> Iterator[Any]:
    """Yield all MLflow runs of an experiment that meet a condition, page by page."""
    token: str | None = ""
    while token is not None:
        page = client.search_runs([experiment], condition, page_token=token or None)
        yield from page
        token = page.token or None


def number(text: str) -> int | None:
    """Return the number of an attempt from a tag, or None: a trial may set any."""
    return int(text) if text.isdecimal() and len(text) < 20 else None


def moment(submitted: float) -> str:
    """The time of a submission, in the form of the study's tag."""
    return datetime.datetime.fromtimestamp(submitted, datetime.UTC).isoformat(" ", "milliseconds")


def attempts(client: Any, experiment: str, parent: str) -> Found:
    """Queries MLflow for all children of a study's run.

    Args:
        client: MLflow's.
        experiment: id.
        parent: id of the study's run.
    """
    found = Found()
    for run in search(client, experiment, f"tags.`{labels.PARENT}` = '{parent}'"):
        tags = run.data.tags
        attempt = number(tags.get(labels.NUMBER, ""))
        if attempt is not None and (tags.get(labels.STATE) != CREATED or attempt not in found.runs):
            found.runs[attempt] = run.info.run_id  # of several, the one that was written to
            if labels.RECORDED in tags:
                found.whole.add(attempt)
    return found
