"""The fields of job.yaml as `platform explain` shows them: all of them are there, whatever types they have.

Not checked here: the command's output (tests/cli/test_explain.py), the schema itself (test_schema.py).
"""

from __future__ import annotations

import pytest

from trialplane import errors
from trialplane.job import fields, kinds, options

KINDS = tuple(kinds.CLASSES)


def test_every_field_of_every_kind_has_a_meaning_and_a_type() -> None:
    explained = fields.explain("")
    names = {name for cls in kinds.CLASSES.values() for name in cls.model_fields} - {"name"}  # which is the folder's
    assert {field.path for field in explained.fields} == names | {"objective", "profiles"}
    open_paths = [field.path for field in explained.fields if field.path != "profiles"]
    for path in open_paths:
        field = fields.explain(path)
        assert field.type, path
        assert field.text, path
        open_paths += [f"{path}.{part.path}" for part in field.fields if part.path != "*" and path.count(".") < 3]
    assert "collect.learner.resources.cpus" in open_paths


def test_a_field_names_the_kinds_of_job_that_have_it() -> None:
    assert fields.explain("trials").kinds == ("hpo",)
    assert fields.explain("budget.time").kinds == KINDS
    assert {field.path: field.kinds for field in fields.explain("").fields}["resume"] == ("train", "collect")


@pytest.mark.parametrize(
    ("path", "kind", "default"),
    [
        ("trials", "integer", "20"),
        ("stop", "mapping or list of mapping", "[]"),
        ("space.any_name.low", "number or integer or number or null", ""),
        ("environment", "mapping to string", ""),
        ("sampler", "name or mapping", ""),
        ("pruner.hyperband.min_resource", "a whole number", "1"),
    ],
)
def test_types_and_defaults_are_in_words(path: str, kind: str, default: str) -> None:
    field = fields.explain(path)
    assert (field.type, field.default) == (kind, default)


def test_a_field_of_several_types_has_all_their_meanings() -> None:
    field = {part.path: part for part in fields.explain("space.x").fields}["type"]
    assert field.type == '`"float"` or `"int"` or `"categorical"` or `"normal"`'
    assert field.text.count(" Or: ") == 3


def test_samplers_and_pruners_come_with_their_options() -> None:
    assert fields.explain("sampler").choices == options.SAMPLERS
    assert [part.path for part in fields.explain("sampler.tpe").fields] == sorted(options.SAMPLERS["tpe"].options)
    assert {part.path: part.default for part in fields.explain("sampler.tpe").fields}["n_ei_candidates"] == "24"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("budget.tim", "`budget` has no field 'tim'; did you mean time or timeout?"),
        ("trails", "a job has no field 'trails'; did you mean trials"),
        ("trials.x", "`trials` has no field 'x'; it has no fields"),
        ("sampler.tpee", "`sampler` has no field 'tpee'; did you mean tpe"),
        ("sampler.tpe.gama", "`sampler.tpe` has no field 'gama'; did you mean gamma?"),
        ("..", "a job has no field ''; it has "),
    ],
)
def test_an_unknown_field_is_an_error_with_the_nearest_one(path: str, text: str) -> None:
    with pytest.raises(errors.InputError) as raised:
        fields.explain(path)
    assert str(raised.value).startswith(text)
