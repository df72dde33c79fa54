"""The token cache: the tokens are the tokenizer's, their bytes depend on nothing else, and nothing half-made is used.

Real worker processes. Not checked: speed (tests/benchmarks), tokenizers and their conversion (tests/textjobs).
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.worker.conftest import alive, wait_until

from trialplane import errors
from trialplane.policies import pickling
from trialplane.training import clean
from trialplane.training.lines import LineDataset
from trialplane.training.tokens import TokenDataset, shards, tokenized

pytestmark = pytest.mark.slow

SHARDS = 6
COUNT = (SHARDS - 1) * shards.LINES + 100  # lines, of which the last shard has few
LAST = f"{SHARDS - 1:06}.tokens"

# No `if __name__ == "__main__"`: workers are not copies of the script.
SCRIPT = """
import sys
from trialplane.training import tokens
from trialplane.training.lines import LineDataset
{before}
print(tokens.tokenized(LineDataset(sys.argv[1]), sys.argv[2], max_length=8, cache=sys.argv[3], processes=2).tokens)
"""
# Says who its workers are, and is killed when the first shard is there.
KILLED = """
import os, signal
from trialplane.training.tokens import dataset
def children(pid):
    return open(f"/proc/{pid}/task/{pid}/children").read().split()
def killed(self):
    (parent,) = children(os.getpid())
    print(parent, *children(parent), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
dataset._Progress.add_shard = killed
"""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small WordPiece tokenizer, as a folder."""
    from transformers import BertTokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "line", "##s", *(str(digit) for digit in range(10))]
    words += [f"##{digit}" for digit in range(10)]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizer(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "corpus.txt"
    file.write_text("".join(f"Lines {number}\n" for number in range(COUNT)))
    return file


@pytest.fixture(scope="module")
def lines(corpus: Path) -> LineDataset:
    return LineDataset(corpus)


@pytest.fixture(scope="module")
def made(lines: LineDataset, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    return tokenized(lines, tokenizer, max_length=8, cache=tmp_path_factory.mktemp("cache"), processes=2, say=None)


def small(folder: Path, content: str = "line 1\nlines 22\nline\n") -> LineDataset:
    file = folder / "small.txt"
    file.write_text(content)
    return LineDataset(file)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def script(before: str, corpus: Path, tokenizer: Path, cache: Path) -> list[str]:
    return [sys.executable, "-c", SCRIPT.replace("{before}", before), str(corpus), str(tokenizer), str(cache)]


def test_the_tokens_are_the_tokenizers(lines: LineDataset, tokenizer: Path, made: TokenDataset) -> None:
    from transformers import AutoTokenizer

    expected = AutoTokenizer.from_pretrained(tokenizer)
    assert len(made) == COUNT
    picked = [0, 1, 9999, shards.LINES - 1, shards.LINES, COUNT - 1]
    for index in picked:
        assert made[index].tolist() == expected(lines[index]["text"], truncation=True, max_length=8)["input_ids"]
    assert made[-1].tolist() == made[COUNT - 1].tolist()
    assert made.tokens == sum(len(made[index]) for index in range(COUNT))
    with pytest.raises(IndexError):
        made[COUNT]


def test_a_row_is_a_read_only_view(made: TokenDataset) -> None:
    row = made[5]
    assert row.dtype == np.uint16
    assert not row.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        row[0] = 1


def test_a_recipe_is_sent_and_no_tokens(made: TokenDataset) -> None:
    made[0]
    data = pickle.dumps(made)
    assert len(data) < 1000
    pickling.check_dataset(made)
    received: TokenDataset = pickle.loads(data)
    assert received[COUNT - 1].tolist() == made[COUNT - 1].tolist()
    assert received.tokens == made.tokens


def test_the_bytes_do_not_depend_on_the_number_of_processes(
    lines: LineDataset, tokenizer: Path, made: TokenDataset, tmp_path: Path
) -> None:
    again = tokenized(lines, tokenizer, max_length=8, cache=tmp_path, processes=1, say=None)
    assert again.folder.name == made.folder.name
    assert contents(again.folder) == contents(made.folder)
    assert [file.name for file in tmp_path.iterdir()] == [again.folder.name], "no lock is left"


def test_a_cache_that_is_there_starts_no_process(
    lines: LineDataset, tokenizer: Path, made: TokenDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clean, "run", None)
    said: list[str] = []
    again = tokenized(lines, tokenizer, max_length=8, cache=made.folder.parent, say=said.append)
    assert (again.folder, again.tokens) == (made.folder, made.tokens)
    assert said == []


def test_whatever_changes_the_tokens_changes_the_cache(tokenizer: Path, tmp_path: Path) -> None:
    cases = {
        "": tokenized(small(tmp_path), tokenizer, max_length=8, cache=tmp_path, say=None),
        "length": tokenized(small(tmp_path), tokenizer, max_length=3, cache=tmp_path, say=None),
        "plain": tokenized(small(tmp_path), tokenizer, max_length=8, add_special_tokens=False, cache=tmp_path, say=None),
    }
    assert [row.tolist() for row in cases["length"]] == [[2, 5, 3], [2, 5, 3], [2, 5, 3]]
    assert [row.tolist() for row in cases["plain"]] == [[5, 8], [5, 6, 9, 19], [5]]
    other = tmp_path / "other"
    other.mkdir()
    for file in tokenizer.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    cases["same files"] = tokenized(small(tmp_path), other, max_length=8, cache=tmp_path, say=None)
    settings = json.loads((other / "tokenizer_config.json").read_text())
    (other / "tokenizer_config.json").write_text(json.dumps({**settings, "truncation_side": "left"}))
    cases["side"] = tokenized(small(tmp_path), other, max_length=3, cache=tmp_path, say=None)
    assert cases["side"][1].tolist() == [2, 19, 3]
    cases["text"] = tokenized(small(tmp_path, "line 3\n"), tokenizer, max_length=8, cache=tmp_path, say=None)
    folders = {name: case.folder for name, case in cases.items()}
    assert folders.pop("same files") == folders[""]
    assert len(set(folders.values())) == len(folders) == 5


def test_a_large_vocabulary_takes_four_bytes(tokenizer: Path, tmp_path: Path) -> None:
    from transformers import BertTokenizer

    words = (tokenizer / "vocab.txt").read_text().split("\n")
    words += [f"##{number:05d}" for number in range((1 << 16) - len(words))] + ["rare"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    BertTokenizer(vocab=str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    (row,) = tokenized(small(tmp_path, "rare line\n"), tmp_path, max_length=8, cache=tmp_path, say=None)
    assert row.dtype == np.int32
    assert row.tolist() == [2, 1 << 16, 5, 3]


def test_a_killed_run_is_taken_up_where_it_was(
    corpus: Path, lines: LineDataset, tokenizer: Path, made: TokenDataset, tmp_path: Path
) -> None:
    killed = subprocess.run(script(KILLED, corpus, tokenizer, tmp_path), capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    workers = [int(pid) for pid in killed.stdout.splitlines()[-1].split()]
    assert len(workers) == 3, "a fresh interpreter, and its two forks"
    wait_until(lambda: not any(alive(pid) for pid in workers), "its workers have ended by themselves")
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    kept = {file.name: file.stat().st_ino for file in folder.glob("*.tokens")}
    assert 1 <= len(kept) < SHARDS
    assert not (folder / "complete.json").exists()
    (folder / "000000.tokens.abcdef01.part").touch()  # what a worker killed in mid-write leaves

    said: list[str] = []
    again = tokenized(lines, tokenizer, max_length=8, cache=tmp_path, processes=2, say=said.append)
    assert {name: (folder / name).stat().st_ino for name in kept} == kept, "finished shards are not made again"
    assert f"{len(kept) / SHARDS:.0%} was done before" in said[0]
    assert contents(again.folder) == contents(made.folder)


def test_of_many_that_come_at_once_one_tokenizes(tokenizer: Path, tmp_path: Path) -> None:
    """As the ranks of a run do, before they meet."""
    small(tmp_path)
    command = script("", tmp_path / "small.txt", tokenizer, tmp_path / "cache")
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [rank.communicate(timeout=400)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert sorted("tokenizing" in each for each in said) == [False, True]
    assert len({each.splitlines()[-1] for each in said}) == 1


@pytest.mark.parametrize("damage", ["gone", "cut", "another"])
def test_a_lost_shard_is_made_again_and_the_others_are_not(
    lines: LineDataset, tokenizer: Path, made: TokenDataset, tmp_path: Path, damage: str
) -> None:
    folder = tmp_path / made.folder.name
    folder.mkdir()
    for name, data in contents(made.folder).items():
        (folder / name).write_bytes(data)
    shard = folder / "000001.tokens"
    if damage == "gone":
        shard.unlink()
    else:
        shard.write_bytes(shard.read_bytes()[:-1] if damage == "cut" else (folder / LAST).read_bytes())
    opened = TokenDataset(folder, len(made), made.tokens, made.dtype.str)
    assert opened[0].tolist() == made[0].tolist()
    with pytest.raises(errors.CacheError, match=rf"000001\.tokens is {'missing' if damage == 'gone' else 'damaged'}"):
        opened[shards.LINES]
    said: list[str] = []
    again = tokenized(lines, tokenizer, max_length=8, cache=tmp_path, processes=2, say=said.append)
    assert "on 1 core" in said[0]
    assert contents(again.folder) == contents(made.folder)


def test_a_full_disk_leaves_no_half_cache(lines: LineDataset, tokenizer: Path, made: TokenDataset, tmp_path: Path) -> None:
    """A limit on the size of files fails the same call as a full disk; workers inherit it. The last, short shard fits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(errors.CacheError, match=r"cannot be written to .*: File too large.*Make room"):
            tokenized(lines, tokenizer, max_length=8, cache=tmp_path, processes=2, say=None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    (folder,) = tmp_path.iterdir()
    assert not (folder / "complete.json").exists()
    assert {file.name for file in folder.glob("*.tokens")} <= {LAST}
    again = tokenized(lines, tokenizer, max_length=8, cache=tmp_path, processes=2, say=None)
    assert contents(again.folder) == contents(made.folder)


def test_a_line_that_is_not_utf8_is_named(tokenizer: Path, tmp_path: Path) -> None:
    file = tmp_path / "corpus.txt"
    file.write_bytes(b"line 1\n\nline \xff\n")
    with pytest.raises(errors.DataError, match=r"corpus\.txt, line 3: not UTF-8"):
        tokenized(LineDataset(file), tokenizer, max_length=8, cache=tmp_path / "cache", say=None)


def test_a_killed_worker_ends_the_others_and_is_named(
    lines: LineDataset, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In place of the library: one of its processes is killed, while the other waits.
    (tmp_path / "tokenizers.py").write_text(
        "import os, signal\n"
        "class Tokenizer:\n"
        "    from_str = enable_truncation = lambda *_, **options: Tokenizer()\n"
        "    def encode_batch_fast(self, *_, **options):\n"
        f"        with open({str(tmp_path / 'pids')!r}, 'a') as file:\n"
        "            file.write(f'{os.getpid()}\\n')\n"
        f"        if len(open({str(tmp_path / 'pids')!r}).readlines()) > 1:\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        signal.pause()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = children.read_text().split()  # servers that other tests have started
    with pytest.raises(errors.CacheError, match=r"a tokenizing process was killed; .*memory is short.*fewer processes"):
        tokenized(lines, tokenizer, max_length=8, cache=tmp_path / "cache", processes=2, say=None)
    assert children.read_text().split() == before
    pids = [int(line) for line in (tmp_path / "pids").read_text().splitlines()]
    wait_until(lambda: not any(alive(pid) for pid in pids), "all have ended")


def test_ranks_that_have_met_may_read_a_cache_and_not_make_one(
    lines: LineDataset, tokenizer: Path, made: TokenDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch import distributed

    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 8)
    monkeypatch.setattr(distributed, "get_rank", lambda: 3)
    assert len(tokenized(lines, tokenizer, max_length=8, cache=made.folder.parent, say=None)) == COUNT
    with pytest.raises(errors.PolicyError, match=r"rank 3 of 8.*Call tokenized\(\) before init_process_group"):
        tokenized(lines, tokenizer, max_length=8, cache=tmp_path, say=None)


def test_bad_arguments_cost_nothing(lines: LineDataset, tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(errors.InputError, match="max_length is 0"):
        tokenized(lines, tokenizer, max_length=0, cache=tmp_path)
    with pytest.raises(errors.InputError, match="could not be loaded"):
        tokenized(lines, tmp_path, max_length=8, cache=tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(errors.CacheError, match="cannot be written"):
        tokenized(lines, tokenizer, max_length=8, cache=tmp_path / "file")


@pytest.mark.gpu
def test_cuda_may_be_initialized(tokenizer: Path, tmp_path: Path) -> None:
    """Workers are fresh interpreters; a fork would fail with "Cannot re-initialize CUDA in forked subprocess"."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    torch.zeros(1, device="cuda")
    assert len(tokenized(small(tmp_path), tokenizer, max_length=8, cache=tmp_path, say=None)) == 3


def test_a_worker_starts_without_what_only_its_parent_needs() -> None:
    """And without a warning that its module is there twice, which is what an eager package would bring about."""
    program = "import sys, trialplane.training.tokens.worker; print('trialplane.training.tokens.dataset' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
