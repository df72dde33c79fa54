"""What the text jobs read and score with: tables, pairs, spans, scores. Scores are compared with scikit-learn's.

Not checked: models, which are test_encoders.py's, and the jobs themselves (tests/jobs).
"""

from __future__ import annotations

import numpy as np
import pytest

from textjobs import pairs, scores, spans, tables, tokenizers
from trialplane import errors

CORPUS = ["I lie awake until three.", "Food tastes of nothing.", "sleep trouble", "The bus was late again!"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "post,label\nhello,1\n"),
        ("a.tsv", "post\tlabel\nhello\t1\n"),
        ("a.jsonl", '{"post": "hello", "label": 1}\n\n'),
    ],
)
def test_rows_are_read_by_the_files_name(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    (row,) = tables.read_rows(tmp_path / name, ["post", "label"])
    assert row["post"] == "hello"
    assert tables.integer(row, "label", tmp_path / name, 2) == 1


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.csv", "post,tag\nhello,1\n", r"a\.csv: row 1 has no label; it has: post, tag"),
        ("a.jsonl", '{"post": "a", "label": 0}\n{"post": "b"}\n', r"a\.jsonl: row 2 has no label; it has: post"),
        ("a.jsonl", '{"post": "a", "label": 0}\n{oops\n', r"a\.jsonl: line 2 is not JSON"),
        ("a.jsonl", "[1]\n", r"a\.jsonl: line 1 is not a JSON object"),
        ("a.csv", "", r"a\.csv: holds no rows"),
        ("a.csv", b"post,label\n\xff\xfe,1\n", r"a\.csv: not UTF-8"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path, name, text, says):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(errors.InputError, match=says):
        tables.read_rows(tmp_path / name, ["post", "label"])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(errors.InputError, match=r"gone\.csv: No such file"):
        tables.read_rows(tmp_path / "gone.csv", [])


@pytest.mark.parametrize("value", ["2", "-1", "yes", None])
def test_a_label_out_of_range_is_refused(tmp_path, value):
    with pytest.raises(errors.InputError, match=r"label is .*; it must be an integer from 0 to 1"):
        tables.integer({"label": value}, "label", tmp_path / "a.csv", 2)


def test_folds_part_the_keys():
    keys = [f"post {number}" for number in range(200)]
    for key in keys:
        assert sum(tables.is_validation(key, 5, fold) for fold in range(5)) == 1
    assert 20 < sum(tables.is_validation(key, 5, 0) for key in keys) < 60


def test_scores_are_those_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    draw = np.random.default_rng(0)
    for size in (1, 7, 200):
        truth, score = draw.integers(0, 2, size), draw.random(size).round(1)  # rounding makes ties
        truth[0] = 1
        expected = metrics.f1_score(truth, score > 0.5, average="macro", labels=[0, 1], zero_division=0)
        assert scores.macro_f1(truth, score > 0.5) == pytest.approx(expected)
        assert scores.average_precision(truth, score) == pytest.approx(metrics.average_precision_score(truth, score))
    assert scores.average_precision([0, 0], [0.1, 0.2]) == 0.0


def test_a_span_counts_only_when_both_ends_match():
    truth = [{(0, 5), (8, 12)}, set()]
    assert scores.span_f1(truth, truth) == 1.0
    assert scores.span_f1(truth, [{(0, 5), (8, 11)}, set()]) == 0.5
    assert scores.span_f1(truth, [{(0, 5)}, {(1, 2)}]) == 0.5
    assert scores.span_f1([set()], [set()]) == 0.0


def test_spans_become_tags_and_tags_the_same_spans(tmp_path):
    tokenizer = tokenizers.load_tokenizer("tiny-deberta", tmp_path, CORPUS)
    posts = ["I lie awake until three. The bus was late again!", "Food tastes of nothing."]
    truth = [[(2, 23), (33, 47)], []]
    coded = pairs.encode(tokenizer, ["sleep trouble"] * 2, posts, 64)
    tags = spans.tag(coded, truth)
    assert (tags[coded.segments != pairs.SECOND] == spans.IGNORED).all()
    assert sorted((tags == spans.BEGIN).sum(1)) == [0, 2]
    for row, post in enumerate(posts):
        assert spans.decode(tags[row], coded.offsets[row], post) == set(truth[row])
    assert (coded.mask.sum(1) <= 64).all()
    short = pairs.encode(tokenizer, ["sleep trouble"] * 2, posts, 8)
    assert short.ids.shape == (2, 8)
    assert ((short.segments == pairs.FIRST).sum(1) == (coded.segments == pairs.FIRST).sum(1)).all()


def test_an_inside_without_a_beginning_begins():
    offsets = np.array([[0, 1], [1, 3], [3, 5]])
    tags = np.array([spans.INSIDE, spans.OUTSIDE, spans.INSIDE])
    assert spans.decode(tags, offsets, "a b c") == {(0, 1), (4, 5)}


def test_sentences_score_as_their_best_token():
    post = "One two. Three?"
    assert [post[start:end] for start, end in spans.sentences(post)] == ["One two.", "Three?"]
    offsets = np.array([[0, 0], [0, 3], [3, 7], [8, 14]])
    rows = spans.sentence_scores(post, [(4, 7)], np.array([0.0, 0.1, 0.9, 0.3], dtype=np.float32), offsets)
    assert [held for held, _ in rows] == [True, False]
    assert [score for _, score in rows] == pytest.approx([0.9, 0.3])


@pytest.mark.parametrize("value", ["oops", [[1]], [["a", "b"]], [[3, 2]], [[0, 99]], 7])
def test_bad_spans_name_the_file(tmp_path, value):
    with pytest.raises(errors.InputError, match=r"a\.jsonl: span"):
        spans.parse({"post": "short", "spans": value}, tmp_path / "a.jsonl")


def test_spans_of_a_csv_are_json(tmp_path):
    assert spans.parse({"post": "short", "spans": "[[0, 2]]"}, tmp_path / "a.csv") == [(0, 2)]
