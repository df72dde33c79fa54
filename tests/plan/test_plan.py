"""Names of runs, and the plan of a run: what it holds and that its facts do not depend on when it is made.

Not checked here: packing (test_pack.py), and what a target makes of a plan (tests/client).
"""

from __future__ import annotations

import json
import time

import pytest

from trialplane.job import kinds
from trialplane.plan import plan as planning
from trialplane.plan.plan import Provenance

JOB = kinds.read({"name": "demo", "kind": "hpo", "objectives": [{"metric": "loss", "direction": "minimize"}]})
ORIGIN = Provenance(
    job_folder="/jobs/demo",
    user="ann",
    version="1",
    command=("platform", "submit", "--param", "api_key=hush1"),
    git_revision="abc",
)
NOON = time.struct_time((2026, 5, 1, 12, 30, 9, 4, 121, 0))


@pytest.mark.parametrize("name", ["a", "criteria-2026", "a1-b2", "x" * 47])
def test_good_names_pass(name):
    assert planning.check_name(name) == []


@pytest.mark.parametrize("name", ["", "-a", "a-", "1a", "A", "a_b", "a.b", "a/b", "..", "ä", "a b", "x" * 48, "a\n"])
def test_bad_names_are_one_issue_that_names_the_flag(name):
    (issue,) = planning.check_name(name)
    assert issue.source == "--name"


@pytest.mark.parametrize("text", ["My Run", "1st_try", "a_b", "x" * 60, "--", "ÄÖ", "a" * 46 + "_b"])
def test_a_slug_is_a_good_name(text):
    assert planning.check_name(planning.slug(text)) == []


def test_the_issue_shows_a_name_that_is_good():
    (issue,) = planning.check_name("My_Run")
    assert "my-run" in issue.message


@pytest.mark.parametrize("job", ["demo", "tiny_bert", "9lives", "j" * 63])
def test_the_default_name_is_good_and_holds_the_time(job):
    name = planning.default_name(job, (), NOON)
    assert planning.check_name(name) == []
    assert name.endswith("-20260501-123009")


def test_the_default_name_counts_up_when_it_is_taken():
    first = planning.default_name("demo", (), NOON)
    second = planning.default_name("demo", {first}, NOON)
    third = planning.default_name("demo", {first, second}, NOON)
    assert [first, second, third] == [first, f"{first}-2", f"{first}-3"]


def test_a_plan_holds_the_packed_code_and_the_facts_of_the_submission(tmp_path):
    (tmp_path / "train.py").write_text("def run(ctx): ...\n")
    made = planning.plan(JOB, tmp_path, "demo-1", ORIGIN)
    facts = made.submission(12.5)
    assert made.pack.files == ("train.py",)
    assert facts["code_hash"] == made.pack.sha256
    assert facts["spec_hash"] == planning.spec_hash(JOB)
    assert (facts["submitted"], facts["user"], facts["git_revision"], facts["git_dirty"]) == (12.5, "ann", "abc", False)
    assert "hush1" not in json.dumps(facts)


def test_the_spec_hash_names_the_spec():
    more = JOB.model_copy(update={"trials": JOB.trials + 1})
    assert planning.spec_hash(JOB) == planning.spec_hash(kinds.read(JOB.model_dump_json()))
    assert planning.spec_hash(JOB) != planning.spec_hash(more)


def test_the_difference_of_code_names_each_file():
    old, new = {"a.py": b"1", "b.py": b"1", "c.py": b"1"}, {"a.py": b"1", "b.py": b"2", "d.py": b"1"}
    assert planning.code_difference(old, new) == ["b.py: changed", "c.py: removed", "d.py: added"]
