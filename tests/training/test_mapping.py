"""Datasets mapped in processes of their own: on all cores, once, with the result of a plain map; and what can go wrong.

Not checked: that plain maps are refused where they cannot go well (tests/policies/test_datasets.py), and how fast it is.
"""

from __future__ import annotations

import functools
import gzip
import importlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.worker.conftest import alive, wait_until

from trialplane import errors
from trialplane.training import clean, mapping

pytestmark = pytest.mark.slow

datasets = pytest.importorskip("datasets")

ROWS = [{"text": f"row {number} says {number % 7}", "label": number % 3} for number in range(60)]


def longer(batch: dict[str, list[Any]], times: int = 2) -> dict[str, list[Any]]:
    """More rows than there were, and where they were made."""
    texts = [text for text in batch["text"] for _ in range(times)]
    rank = os.environ.get("RANK", "none")
    return {
        "said": texts,
        "pid": [os.getpid()] * len(texts),
        "parent": [os.getppid()] * len(texts),
        "rank": [rank] * len(texts),
    }


def fails(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    raise KeyError("colour")


def dies(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    os.kill(os.getpid(), 9)
    return batch


def nothing(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {"said": []}


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions here are sent by name, and pytest itself does not need this module's package on the path."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture
def rows(file: Path, tmp_path: Path) -> Any:
    return mapping.table(file, ["text"], cache=tmp_path / "cache")


def many(rows: Any, function: Any, tmp_path: Path, **options: Any) -> Any:
    batched = {"batched": True, "remove_columns": rows.column_names, **options}
    return mapping.mapped(rows, function, cache=tmp_path / "cache", **batched)


def test_it_is_what_map_gives_made_by_others_and_kept(
    rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """From a rank, beside a thread: neither matters."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    stop = threading.Event()
    threading.Thread(target=stop.wait).start()
    try:
        made = many(rows, longer, tmp_path, processes=2, rows_each=30)
    finally:
        stop.set()
    assert made["said"][:] == [row["text"] for row in ROWS for _ in range(2)]
    assert len(set(made["pid"])) == 2
    assert len(set(made["parent"])) == 1, "forked by one"
    assert os.getpid() not in {*made["pid"], *made["parent"]}
    assert set(made["rank"]) == {"none"}
    said = capfd.readouterr().out
    assert "mapping 60 rows by longer on 2 cores into" in said
    assert "mapped 60 rows into 120" in said

    monkeypatch.setattr(clean, "run", None)
    again = many(rows, longer, tmp_path)
    assert again["pid"][:] == made["pid"][:]
    assert all(Path(cached["filename"]).parent.parent == tmp_path / "cache" for cached in again.cache_files)
    with pytest.raises(TypeError):
        many(rows, functools.partial(longer, times=3), tmp_path)


def test_ranks_that_come_together_make_it_once(file: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from trialplane.training import mapping\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\nimport job\ncache = Path({str(tmp_path / 'cache')!r})\n"
        f"rows = mapping.table({str(file)!r}, ['text'], cache=cache)\n"
        "made = mapping.mapped(rows, job.tell, cache=cache, say=lambda line: print(line, file=sys.stderr))\n"
        "print(len(made), set(made['pid']))"
    )
    (tmp_path / "job.py").write_text("import os\ndef tell(row):\n    return {'pid': os.getpid()}\n")
    ranks = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0], said
    assert len({out for out, _ in said}) == 1
    assert sum(err.count("mapping 60 rows by tell on 1 core into") for _, err in said) == 1


def test_a_function_that_was_rewritten_makes_another_cache(
    rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name and arguments are as before; the text of its file is not."""
    monkeypatch.syspath_prepend(tmp_path)
    made = []
    for said in ("'one'", "'other'"):
        (tmp_path / "rewritten.py").write_text(f"def label(row):\n    return {{'said': {said}}}\n")
        importlib.invalidate_caches()
        sys.modules.pop("rewritten", None)
        module = importlib.import_module("rewritten")
        made.append(mapping.mapped(rows, module.label, cache=tmp_path / "cache")["said"][0])
    assert made == ["one", "other"]


def test_no_process_outlives_the_one_that_maps(file: Path, tmp_path: Path) -> None:
    """Killed like one that ran out of memory: it cannot end its processes itself."""
    (tmp_path / "job.py").write_text(
        "import os, signal\ndef stay(row):\n"
        f"    open({str(tmp_path)!r} + f'/pid-{{os.getpid()}}-{{os.getppid()}}', 'w').close()\n    signal.pause()\n"
    )
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import job\nfrom trialplane.training import mapping\n"
        f"rows = mapping.table({str(file)!r}, ['text'], cache={str(tmp_path / 'cache')!r})\n"
        f"mapping.mapped(rows, job.stay, cache={str(tmp_path / 'cache')!r}, processes=2, rows_each=1)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as parent:
        wait_until(lambda: len(list(tmp_path.glob("pid-*"))) == 2, "both processes work")
        parent.kill()
    pids = {int(pid) for path in tmp_path.glob("pid-*") for pid in path.name.split("-")[1:]}
    assert len(pids) == 3
    wait_until(lambda: not any(alive(pid) for pid in pids), "they have ended")


def test_what_the_function_raises_is_told(rows: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(errors.InputError, match=r"mapping by fails failed: KeyError: 'colour'; its traceback is above"):
        many(rows, fails, tmp_path)
    assert "Traceback" in capfd.readouterr().err
    with pytest.raises(errors.InputError, match="mapping by nothing failed: ValueError: it returned no rows"):
        many(rows, nothing, tmp_path)


def test_a_process_that_is_killed_is_told(rows: Any, tmp_path: Path) -> None:
    with pytest.raises(errors.CacheError, match=r"was killed by SIGKILL.*run it again, with fewer processes"):
        many(rows, dies, tmp_path)
    assert not list((tmp_path / "cache").glob("mapped-*/complete.json"))


def test_data_in_memory_and_large_functions_are_refused(tmp_path: Path, rows: Any) -> None:
    loaded = datasets.Dataset.from_dict({"text": ["word " * 20] * 20_000})
    with pytest.raises(errors.PolicyError, match="Dataset would send"):
        many(loaded, longer, tmp_path)
    with pytest.raises(errors.PolicyError, match=r"the function longer would send 2\.\d MiB .* hold the path"):
        many(rows, functools.partial(longer, times=b"x" * 2_200_000), tmp_path)
    with pytest.raises(TypeError, match="sets num_proc itself"):
        many(rows, longer, tmp_path, num_proc=2)


@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv", "rows.json.gz"])
def test_tables_of_several_kinds(tmp_path: Path, name: str) -> None:
    file, separator = tmp_path / name, "\t" if name.endswith("tsv") else ","
    if name.endswith("gz"):
        file.write_bytes(gzip.compress(b'{"text": "one", "label": 1}\n{"text": "two", "label": 2}\n'))
    else:
        file.write_text(f"text{separator}label\none{separator}1\ntwo{separator}2\n")
    rows = mapping.table(file, ["text", "label"], cache=tmp_path / "cache")
    assert rows[:] == {"text": ["one", "two"], "label": [1, 2]}


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("away.jsonl", None, r"away\.jsonl does not exist; params\.data names it"),
        ("rows.docx", "x", r"rows\.docx: its name has no known ending; give \.csv, \.tsv"),
        ("bad.jsonl", "{]\n", r"bad\.jsonl cannot be read: "),
        ("empty.jsonl", "", r"empty\.jsonl (holds no rows|cannot be read)"),
        ("other.jsonl", '{"body": "a"}\n', r"other\.jsonl has no column text; it has: body"),
    ],
)
def test_a_table_that_cannot_be_read(tmp_path: Path, name: str, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(errors.DataError, match=says):
        mapping.table(tmp_path / name, ["text"], cache=tmp_path / "cache")
