"""`Dataset.map` for training jobs: on all cores, in processes without CUDA or threads, once for all ranks and runs.

A rank that maps by itself forks beside CUDA and threads, or uses one core, and eight ranks map eight times. Here the first
rank starts a fresh interpreter (`training/clean.py`), which forks one process per core; the others wait for its lock and get
the same memory-mapped Arrow files. CUDA and threads in the calling process do not matter. Call it before the process group
is created all the same: then no rank waits in a collective, which has a time limit.

`datasets` is imported inside the functions.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialplane import errors
from trialplane.policies import pickling
from trialplane.training import building, clean, process
from trialplane.training.mapping.worker import COMPLETE, Work

if TYPE_CHECKING:
    import datasets

VERSION = 1
_READERS = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}
# Options that this module sets itself.
_RESERVED = ("num_proc", "cache_file_name", "keep_in_memory", "load_from_cache_file", "new_fingerprint", "suffix_template")


def table(file: str | Path, columns: Sequence[str], *, cache: str | Path) -> datasets.Dataset:
    """Load a CSV, TSV, JSON Lines or Parquet file, through an Arrow file in the cache that is created if needed.

    Args:
        file: Path of the file. Its name gives the format: .csv, .tsv, .json, .jsonl, .ndjson or .parquet, also with .gz.
        columns: Names of required columns.
        cache: Folder shared by all trials, for example `ctx.cache`.

    Raises:
        DataError: The file is missing, not in the format of its name or without rows, or a column is missing.
    """
    import datasets
    import tqdm
    from datasets import exceptions

    file = Path(file).absolute()
    endings = [suffix.lower() for suffix in file.suffixes if suffix.lower() != ".gz"]
    ending = endings[-1] if endings else ""
    if not file.is_file():
        raise errors.DataError(f"data file {file} does not exist; params.data names it")
    if ending not in _READERS:
        raise errors.DataError(f"data file {file}: its name has no known ending; give {', '.join(_READERS)}")
    options = {"sep": "\t"} if ending == ".tsv" else {}
    datasets.disable_progress_bars()
    # Even a hidden bar takes a lock between processes, which is reported as leaked when a rank ends.
    tqdm.tqdm.set_lock(threading.RLock())
    try:
        rows = datasets.load_dataset(
            _READERS[ending], data_files=str(file), split="train", cache_dir=str(Path(cache) / "datasets"), **options
        )
    except StopIteration as error:  # raised by datasets 5.2 for an empty file
        raise errors.DataError(f"data file {file} holds no rows") from error
    except (exceptions.DatasetGenerationError, ValueError) as error:
        cause = error.__cause__ or error
        raise errors.DataError(f"data file {file} cannot be read: {errors.first_line(cause)}") from error
    if not len(rows):
        raise errors.DataError(f"data file {file} holds no rows")
    missing = [column for column in columns if column not in rows.column_names]
    if missing:
        raise errors.DataError(
            f"data file {file} has no column {', '.join(missing)}; it has: {', '.join(rows.column_names)}"
        )
    return rows


def mapped(
    dataset: datasets.Dataset,
    function: Callable[..., Any],
    *,
    cache: str | Path,
    processes: int | None = None,
    rows_each: int = 1000,
    say: Callable[[str], object] = print,
    **options: Any,
) -> datasets.Dataset:
    """Return `dataset.map(function, **options)`, from a cache that is created on all cores if needed.

    All ranks can call it at once: one creates the cache, and the others wait for it. Call it before the process group is
    created. The cache depends on the dataset, the function and the source of its module, the options and the version of
    `datasets`. A killed run continues with the shards that are finished.

    Args:
        dataset: Dataset with files on disk, from `table`, `load_dataset` or `load_from_disk`.
        function: Function for `map`. It is sent to other processes, so it should hold paths and no data.
        cache: Folder shared by all trials, for example `ctx.cache`.
        processes: Maximum number of processes. Default: one per usable core.
        rows_each: Minimum number of rows per process.
        say: Function to call with messages at the start and at the end.
        **options: Options for `map`: `batched`, `remove_columns`, `fn_kwargs`, …

    Raises:
        PolicyError: The dataset or the function is too large to send.
        InputError: The function failed. Its traceback is in the log.
        CacheError: The cache cannot be written, or a process was killed.
        TypeError: An option is one that this function sets itself, for example `num_proc`.
    """
    import datasets

    if reserved := [name for name in options if name in _RESERVED]:
        raise TypeError(f"mapped() sets {', '.join(reserved)} itself")
    pickling.check_dataset(dataset)
    hasher = datasets.fingerprint.Hasher
    facts = {  # what the rows depend on; its digest is in the name of the cache
        "version": VERSION,
        "rows": dataset._fingerprint,
        "function": hasher.hash(function),
        "source": _source_digest(function),
        "options": hasher.hash(options),
        "datasets": datasets.__version__,
    }
    key = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16).hexdigest()
    folder = Path(cache).expanduser().absolute() / f"mapped-{key}"
    if (existing := _open_complete(folder)) is not None:
        return existing
    processes = max(1, min(processes or process.cores(), len(dataset) // rows_each))
    work = Work(
        import_path=sys.path,
        function=_pickled(function),
        name=_name(function),
        rows=dataset,
        options=options,
        processes=processes,
        folder=str(folder),
        facts=facts,
    )
    try:
        with building.lock(folder):
            if (existing := _open_complete(folder)) is not None:  # another process created it while this one waited
                return existing
            folder.mkdir(exist_ok=True)
            say(f"mapping {len(dataset):,} rows by {work.name} on {errors.counted(processes, 'core')} into {folder}")
            clean.run("trialplane.training.mapping.worker", work, f"the mapping by {work.name}")
            created = _open_complete(folder)
    except OSError as error:
        raise errors.CacheError(
            f"{folder} cannot be written ({error.strerror}); make room, or name another cache"
        ) from error
    assert created is not None  # the process wrote `complete.json`, or `clean.run` raised an error
    say(f"mapped {len(dataset):,} rows into {len(created):,}")
    return created


def _open_complete(folder: Path) -> datasets.Dataset | None:
    """Return the cached dataset if all of its files exist, otherwise None."""
    import datasets

    try:
        files = [folder / name for name in json.loads((folder / COMPLETE).read_bytes())["files"]]
    except (OSError, ValueError):
        return None
    if not all(file.is_file() for file in files):
        return None
    return datasets.concatenate_datasets([datasets.Dataset.from_file(str(file)) for file in files])


def _pickled(function: Callable[..., Any]) -> bytes:
    """Return a function as bytes, for another process.

    Raises:
        PolicyError: It is too large to send, because it holds data.
    """
    import dill

    # dill also pickles lambdas and functions of a script. With `recurse`, it takes only the globals that the function uses.
    pickled = dill.dumps(function, recurse=True)
    if len(pickled) > pickling.limit():
        raise errors.PolicyError(
            f"the function {_name(function)} would send {len(pickled) / 2**20:.1f} MiB to another process; let it "
            "hold the path of its data, and load that when it is first called"
        )
    return bytes(pickled)


def _source_digest(function: Callable[..., Any]) -> str:
    """Return a digest of the file that defines the function or its class; "" if there is none."""
    function = getattr(function, "func", function)  # of a functools.partial
    try:
        file = inspect.getsourcefile(function if inspect.isroutine(function) else type(function))
    except TypeError:
        return ""
    return hashlib.blake2b(Path(file).read_bytes(), digest_size=16).hexdigest() if file and Path(file).is_file() else ""


def _name(function: Callable[..., Any]) -> str:
    """Return the name of a function, or of the class of a callable object, for messages."""
    function = getattr(function, "func", function)  # of a functools.partial
    return getattr(function, "__name__", type(function).__name__)
