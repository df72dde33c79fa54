"""Write the results of a collection to npz or Parquet files with a manifest, as the learner of a job with `collect.write`.

    <location>/iteration-0003/shard-00000.npz       a file of about `shard` bytes
                           shard-00000.json      its units, rows, bytes, sha256: written when the file is complete
                           MANIFEST.json         all records, written last: it marks a complete iteration

A shard is complete or absent. A shard with a record is never written again, and its units are not done again by a later
attempt. An npz file has each array of each unit under `<unit>/<path in its tree>`. For Parquet see `tables.Table`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from trialplane import errors
from trialplane.job.kinds.collection import Write
from trialplane.training import building
from trialplane.wire import paths
from trialplane.worker.collect.learner import Learner, Result, Results
from trialplane.worker.collect.tables import Archive, Table

MANIFEST = "MANIFEST.json"
_RECORD = re.compile(r"shard-\d{5}\.json")


@dataclasses.dataclass(frozen=True)
class Shard:
    """One file: its name, the units in it, its rows, the items that their workers counted, its bytes and SHA-256."""

    file: str
    units: tuple[int, ...]
    rows: int
    items: int
    bytes: int
    sha256: str


class Shards:
    """The files of one iteration.

    Args:
        write: Format, size and location of the files.
        checkpoints: Folder or URL of the run's checkpoints, the default location of the files.
        run: Name of the run.
        iteration: Number of the iteration, from 0.
    """

    def __init__(self, write: Write, checkpoints: str, run: str, iteration: int) -> None:
        self.location = paths.shards(write.to or checkpoints, run, iteration)
        self._write = write
        self._folder = _open_folder(self.location)
        records = [self._folder.read(name) for name in self._folder.names() if _RECORD.fullmatch(name)]
        self.shards = [_parse_record(record) for record in records]

    @property
    def units(self) -> frozenset[int]:
        """The units that are in complete shards."""
        return frozenset(unit for shard in self.shards for unit in shard.units)

    def write(self, results: Results) -> None:
        """Write all results, and the manifest.

        Raises:
            CacheError: The files cannot be written.
        """
        try:
            written_units = self.units
            new_results = (result for result in results if result.unit not in written_units)
            for first in new_results:  # `_write_shard` takes more of them, so each round has the results of one shard
                number = 1 + max((_shard_number(shard) for shard in self.shards), default=-1)
                self.shards.append(self._write_shard(f"shard-{number:05d}", first, new_results))
            self._folder.write(MANIFEST, self._manifest(results))
        except OSError as error:
            raise errors.CacheError(
                f"the shards of this iteration could not be written to {self.location}: {error.strerror or error}. Make "
                "room there and `platform resume` the run; shards that are complete are kept"
            ) from error

    def _write_shard(self, name: str, first: Result, rest: Iterator[Result]) -> Shard:
        """Write results into a new file until it is full or there are no more, and its record; return the record.

        These are `first` and as many of `rest` as fit. `name` is without the file's suffix.
        """
        file = f"{name}.{self._write.format}"
        numbers, rows, items = [], 0, 0
        with self._folder.create(file) as raw:
            sink = Sink(raw)
            table: Archive | Table = Table(sink) if self._write.format == "parquet" else Archive(sink)
            with contextlib.closing(table):
                result: Result | None = first
                while result is not None:
                    rows += table.add(result)
                    numbers.append(result.unit)
                    items += result.items
                    result = None  # frees its memory during the wait for the next one
                    if sink.size < self._write.shard_bytes:
                        result = next(rest, None)
        shard = Shard(file, units=tuple(numbers), rows=rows, items=items, bytes=sink.size, sha256=sink.digest.hexdigest())
        self._folder.write(f"{name}.json", json.dumps(dataclasses.asdict(shard)).encode())
        return shard

    def _manifest(self, results: Results) -> bytes:
        """Return the contents of the manifest: the sums of the iteration, and the records of all shards."""
        shards = sorted(self.shards, key=lambda shard: shard.file)
        manifest = {
            "format": self._write.format,
            "expected": results.expected,
            "units": sum(len(shard.units) for shard in shards),
            "failed": results.failed,
            "rows": sum(shard.rows for shard in shards),
            "bytes": sum(shard.bytes for shard in shards),
            "shards": [dataclasses.asdict(shard) for shard in shards],
        }
        return json.dumps(manifest, indent=1).encode()


def open_shards(write: Mapping[str, Any], checkpoints: str, run: str, iteration: int) -> Shards:
    """Return the files of one iteration; for the arguments see `Shards`. `write` is the mapping in a slot's config."""
    return Shards(Write.model_validate(dict(write)), checkpoints=checkpoints, run=run, iteration=iteration)


def write(ctx: Learner, results: Results) -> Mapping[str, float]:
    """Write the results of an iteration, as the learner of a job with `collect.write`; return its metrics."""
    files: Shards = ctx.shards
    if files.units:
        print(f"{errors.counted(len(files.units), 'unit')} of an earlier attempt are in {files.location}", flush=True)  # noqa: T201
    files.write(results)
    return {"shards": float(len(files.shards)), "written_gigabytes": sum(shard.bytes for shard in files.shards) / 1e9}


class Sink:
    """A write-only stream that counts and hashes its bytes, and cannot seek."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self.size = 0
        self.digest = hashlib.sha256()
        self.closed = False

    def write(self, data: Any) -> int:
        """Write all of `data`."""
        view = memoryview(data).cast("B")
        self._raw.write(view)
        self.digest.update(view)
        self.size += len(view)
        return len(view)

    def tell(self) -> int:
        """Return the number of bytes so far."""
        return self.size

    def seekable(self) -> bool:
        """Return whether it can seek."""
        return False

    def writable(self) -> bool:
        """Return whether it can be written."""
        return True

    def readable(self) -> bool:
        """Return whether it can be read."""
        return False

    def flush(self) -> None:
        """Do nothing: there is no buffer here, and the file is flushed when it is closed."""

    def close(self) -> None:
        """Mark the stream as closed; the opener closes the file."""
        self.closed = True


def _parse_record(data: bytes) -> Shard:
    """Return the shard that a record describes."""
    fields = json.loads(data)
    return Shard(**{**fields, "units": tuple(fields["units"])})


def _shard_number(shard: Shard) -> int:
    """Return the number in the name of a shard's file."""
    return int(shard.file.removeprefix("shard-").partition(".")[0])


def _open_folder(location: str) -> _Folder | _Url:
    """Return the folder or the URL at a location."""
    folder = paths.local_folder(location)
    return _Url(location) if folder is None else _Folder(folder)


class _Folder:
    """A folder on disk, where a file appears when it is complete."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self) -> list[str]:
        return sorted(path.name for path in self._path.iterdir()) if self._path.is_dir() else []

    def read(self, name: str) -> bytes:
        return (self._path / name).read_bytes()

    def create(self, name: str) -> contextlib.AbstractContextManager[BinaryIO]:
        self._path.mkdir(parents=True, exist_ok=True)
        building.sweep(self._path, name)  # files of a killed attempt
        return building.open_new(self._path / name)

    def write(self, name: str, data: bytes) -> None:
        with self.create(name) as file:
            file.write(data)


class _Url:
    """A folder at an fsspec URL, where an object appears when it is closed."""

    def __init__(self, location: str) -> None:
        import fsspec  # needed only for URLs

        try:
            self._files, self._root = fsspec.url_to_fs(location)
        except (ImportError, ValueError) as error:
            raise errors.InputError(f"shards cannot be written to {location}: {error}; see collect.write.to") from error

    def names(self) -> list[str]:
        """Return the names of the files in the folder, sorted; none if there is no folder."""
        self._files.invalidate_cache()
        try:
            return sorted(entry.rstrip("/").rpartition("/")[2] for entry in self._files.ls(self._root, detail=False))
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes:
        data: bytes = self._files.cat_file(f"{self._root}/{name}")
        return data

    def create(self, name: str) -> contextlib.AbstractContextManager[BinaryIO]:
        self._files.makedirs(self._root, exist_ok=True)
        opened: contextlib.AbstractContextManager[BinaryIO] = self._files.open(f"{self._root}/{name}", "wb")
        return opened

    def write(self, name: str, data: bytes) -> None:
        with self.create(name) as file:
            file.write(data)
