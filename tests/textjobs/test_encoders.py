"""Tokenizers are converted once and cached; encoders load by preset and by folder; layers get their learning rates.

Not checked: names on the hub, which needs a network; pretrained weights. The protobuf side is test_protobuf_failure.py.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from transformers import BertConfig, BertModel

from textjobs import encoders, tiny_deberta, tokenizers
from trialplane import errors

pytestmark = pytest.mark.slow  # importing models of transformers takes seconds

CORPUS = ["I lie awake until three", "food tastes of nothing", "I feel sad every day", "the bus was late again"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def tiny(cache):
    return tokenizers.load_tokenizer("tiny-deberta", cache, CORPUS)


@pytest.fixture
def bert(tmp_path):
    """A local folder with a small BERT and its vocabulary."""
    folder = tmp_path / "bert"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "i", "feel", "sad", "late"]
    config = BertConfig(
        vocab_size=len(pieces), hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=16
    )
    BertModel(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(pieces))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    return folder


def test_the_cached_tokenizer_is_the_converted_one(cache, tiny, tmp_path):
    tiny_deberta.write(CORPUS, tmp_path)
    converted = tokenizers.convert(tmp_path)
    again = tokenizers.load_tokenizer("tiny-deberta", cache, CORPUS)
    for text in [*CORPUS, "I  feel\tlate, unknown ∂ word"]:
        assert again(text).input_ids == tiny(text).input_ids == converted(text).input_ids
        assert again(text, "pair").encodings[0].offsets == converted(text, "pair").encodings[0].offsets
    assert again.is_fast
    assert (again.pad_token, again.cls_token, again.sep_token, again.unk_token) == ("[PAD]", "[CLS]", "[SEP]", "[UNK]")


def test_later_loads_convert_nothing(cache, tiny, monkeypatch):
    monkeypatch.setattr(tokenizers, "convert", lambda source: pytest.fail("converted again"))
    assert len(tokenizers.load_tokenizer("tiny-deberta", cache, CORPUS)) == len(tiny)


def test_another_corpus_is_another_entry(cache, tiny):
    other = tokenizers.load_tokenizer("tiny-deberta", cache, [*CORPUS, "a sentence more"])
    assert other.get_vocab() != tiny.get_vocab()


def test_changed_files_are_another_entry(bert, tmp_path):
    before = tokenizers.load_tokenizer(str(bert), tmp_path / "cache")
    (bert / "vocab.txt").write_text((bert / "vocab.txt").read_text() + "\nagain")
    after = tokenizers.load_tokenizer(str(bert), tmp_path / "cache")
    assert "again" in after.get_vocab()
    assert "again" not in before.get_vocab()


FORKED = """
import json, os, sys
from pathlib import Path
from transformers.models.auto import tokenization_auto  # once, before the forks
from transformers.models.deberta_v2 import tokenization_deberta_v2
from textjobs import tokenizers
folder, corpus = Path(sys.argv[1]), json.loads(sys.argv[2])
real = tokenizers.convert
def convert(source):
    with (folder / "log").open("a") as log:
        log.write("converted\\n")
    return real(source)
tokenizers.convert = convert
go, gate = os.pipe()
children = []
for number in range(4):
    child = os.fork()
    if not child:
        os.close(gate)
        os.read(go, 1)  # until the parent closes its end: all start together
        tokenizer = tokenizers.load_tokenizer("tiny-deberta", folder / "cache", corpus)
        (folder / f"ids-{number}").write_text(json.dumps(tokenizer("I feel sad").input_ids))
        os._exit(0)
    children.append(child)
os.close(gate)
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""


@pytest.mark.slow
def test_processes_that_start_together_convert_once(tmp_path):
    subprocess.run([sys.executable, "-c", FORKED, str(tmp_path), json.dumps(CORPUS)], check=True)
    assert len({path.read_text() for path in tmp_path.glob("ids-*")}) == 1
    assert len(list(tmp_path.glob("ids-*"))) == 4
    assert (tmp_path / "log").read_text() == "converted\n"
    assert sorted(path.suffix for path in (tmp_path / "cache" / "tokenizers").iterdir()) == [""]


def test_a_failed_conversion_leaves_nothing(tmp_path, bert):
    (bert / "vocab.txt").unlink()
    (bert / "tokenizer_config.json").write_text("{not json")
    with pytest.raises(errors.InputError, match="could not be loaded"):
        tokenizers.load_tokenizer(str(bert), tmp_path / "cache")
    assert [path.suffix for path in (tmp_path / "cache" / "tokenizers").iterdir()] == []


def test_no_text_is_an_input_error(tmp_path):
    with pytest.raises(errors.InputError, match="0 lines of text"):
        tokenizers.load_tokenizer("tiny-deberta", tmp_path, [])


def test_an_unknown_folder_is_an_input_error(tmp_path, tiny):
    missing = str(tmp_path / "no" / "such")
    with pytest.raises(errors.InputError, match="could not be loaded"):
        tokenizers.load_tokenizer(missing, tmp_path / "cache")
    with pytest.raises(errors.InputError, match="could not be loaded"):
        encoders.load_encoder(missing, tiny, seed=0, dropout=0.0)


def test_tiny_deberta_is_a_deberta_v2_whose_weights_the_seed_fixes(tiny):
    one, same, other = (encoders.load_encoder("tiny-deberta", tiny, seed=seed, dropout=0.2) for seed in (1, 1, 2))
    assert one.config.model_type == "deberta-v2"
    assert one.config.relative_attention
    assert one.config.pos_att_type == ["p2c", "c2p"]
    assert one.config.num_hidden_layers == 2
    assert one.config.hidden_dropout_prob == one.config.attention_probs_dropout_prob == 0.2
    name = "encoder.layer.0.attention.self.query_proj.weight"
    assert torch.equal(one.state_dict()[name], same.state_dict()[name])
    assert not torch.equal(one.state_dict()[name], other.state_dict()[name])


def test_each_layer_learns_slower_than_the_one_above(tiny, bert):
    for name in ("tiny-deberta", str(bert)):
        encoder = encoders.load_encoder(name, tiny, seed=0, dropout=0.1)
        model = torch.nn.ModuleDict({"encoder": encoder, "head": torch.nn.Linear(16, 2)})
        groups = encoders.parameter_groups({encoder: 1.0}, model, decay=0.5, head_lr=7.0, weight=0.1)
        grouped = {id(parameter): group for group in groups for parameter in group["params"]}
        assert len(grouped) == len(list(model.parameters()))
        depth = encoder.config.num_hidden_layers
        for index, layer in enumerate(encoder.encoder.layer):
            assert {grouped[id(p)]["lr"] for p in layer.parameters()} == {0.5 ** (depth - 1 - index)}
        assert {grouped[id(p)]["lr"] for p in encoder.embeddings.parameters()} == {0.5**depth}
        assert {grouped[id(p)]["lr"] for p in model["head"].parameters()} == {7.0}
        assert {group["weight_decay"] for group in groups for p in group["params"] if p.ndim == 1} == {0.0}
