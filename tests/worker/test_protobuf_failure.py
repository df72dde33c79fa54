"""The failure that the protobuf policy is for: it happens without the policy, on the installed versions, and not with it.

Each case is a process of its own, since protobuf's descriptor pool belongs to the process. The trigger is a job that also
reads SentencePiece models itself through the messages bundled with transformers, before its tokenizer is converted:
transformers 5 converts through sentencepiece's own copy of the same file, so that alone no longer fails.
Not checked here: that slots set the variable, and parallel trials (tests/study/test_tokenizers.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from textjobs import tiny_deberta
from trialplane.policies import protobuf

pytestmark = pytest.mark.slow

BUNDLED = "transformers.utils.sentencepiece_model_pb2_new"
LEGACY = "transformers.utils.sentencepiece_model_pb2"
SENTENCEPIECE = "sentencepiece.sentencepiece_model_pb2"
DUPLICATE = "Couldn't build proto file into descriptor pool: duplicate file name sentencepiece_model.proto"
CORPUS = ["I lie awake until three", "food tastes of nothing", "I feel sad every day"]

IMPORT = """
import importlib, sys
for name in sys.argv[1].split(","):
    importlib.import_module(name)
"""

LOAD = """
import importlib, json, sys
from pathlib import Path
imported, source, cache = sys.argv[1:]
importlib.import_module(imported)
from trialplane import errors
from textjobs import tokenizers
from trialplane.policies import protobuf
try:
    tokenizer = tokenizers.load_tokenizer(source, Path(cache))
    answer = {"ids": tokenizer("I feel sad").input_ids, "fast": tokenizer.is_fast}
except errors.PolicyError as error:
    answer = {"error": str(error), "cause": repr(error.__cause__)}
print(json.dumps({**answer, "implementation": protobuf.implementation()}))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder with an unconverted DeBERTa-v2 tokenizer."""
    folder = tmp_path_factory.mktemp("source")
    tiny_deberta.write(CORPUS, folder)
    return folder


def _python(code: str, *arguments: str | Path, implementation: str | None) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != protobuf.VARIABLE}
    if implementation is not None:
        environ[protobuf.VARIABLE] = implementation
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


def _load(source: Path, cache: Path, implementation: str | None) -> dict[str, object]:
    ended = _python(LOAD, BUNDLED, source, cache, implementation=implementation)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def test_two_copies_of_the_messages_collide_by_default():
    ended = _python(IMPORT, f"{SENTENCEPIECE},{BUNDLED}", implementation=None)
    assert f"TypeError: {DUPLICATE}" in ended.stderr


def test_the_legacy_copy_is_refused_by_default():
    ended = _python(IMPORT, LEGACY, implementation=None)
    assert "TypeError: Descriptors cannot be created directly" in ended.stderr


@pytest.mark.parametrize("order", [LEGACY, f"{SENTENCEPIECE},{LEGACY}", f"{BUNDLED},{SENTENCEPIECE}"])
def test_the_pure_implementation_takes_them(order):
    ended = _python(IMPORT, order, implementation=protobuf.ENV[protobuf.VARIABLE])
    assert ended.returncode == 0, ended.stderr


def test_conversion_fails_by_default_and_says_what_to_set(source, tmp_path):
    answer = _load(source, tmp_path, implementation=None)
    assert answer["implementation"] == "upb"
    assert DUPLICATE in str(answer["cause"])
    assert "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python" in str(answer["error"])


def test_conversion_works_with_the_policy_and_its_result_needs_no_protobuf(source, tmp_path):
    converted = _load(source, tmp_path, implementation="python")
    assert converted["implementation"] == "python"
    assert converted["fast"]
    cached = _load(source, tmp_path, implementation=None)
    assert cached["implementation"] == "upb"
    assert cached["ids"] == converted["ids"]
