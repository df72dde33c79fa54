"""Which place a command means, and what is remembered of submissions."""

from __future__ import annotations

import pytest

from trialplane.client import target_choice
from trialplane.client.run import submit
from trialplane.client.target_choice import HERE, TargetName
from trialplane.errors import InputError
from trialplane.wire import env, paths

LAB = TargetName(context="lab", namespace="team")


def chosen(*, local=False, context=None, namespace=None, submits=False, **environ):
    return target_choice.choose(local, context, namespace, submits=submits, environ=environ)


@pytest.mark.parametrize("submits", [False, True])
def test_flags_win(home, submits):
    target_choice.remember(LAB, "a")
    environ = {env.CONTEXT: "other", env.NAMESPACE: "theirs"}
    assert chosen(local=True, submits=submits, **environ) == HERE
    assert chosen(context="x", submits=submits, **environ) == TargetName(context="x")
    assert chosen(namespace="y", submits=submits, **environ) == TargetName(context="other", namespace="y")
    with pytest.raises(InputError, match="--local and --namespace name two targets"):
        chosen(local=True, namespace="y", submits=submits)


@pytest.mark.parametrize("submits", [False, True])
def test_then_the_environment(home, submits):
    target_choice.remember(HERE, "a")
    assert chosen(submits=submits, **{env.CONTEXT: "x"}) == TargetName(context="x")
    assert chosen(submits=submits, **{env.NAMESPACE: "y"}) == TargetName(namespace="y")


def test_then_submit_asks_the_kubeconfig_and_others_the_last_submission(home):
    assert chosen() == HERE
    assert chosen(submits=True) == TargetName()
    target_choice.remember(LAB, "a")
    assert chosen() == LAB
    assert chosen(submits=True) == TargetName()
    target_choice.remember(HERE, "b")
    assert chosen() == HERE


def test_names_of_runs_on_clusters_are_kept_for_completion(home):
    for name in ("a", "b", "a"):
        target_choice.remember(LAB, name)
    target_choice.remember(HERE, "c")
    assert target_choice.recall().runs == ("a", "b")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"target": 1}', '{"target": {"local": true}, "runs": []}'])
def test_a_damaged_memory_is_none(home, text):
    home.mkdir()
    paths.target_file(home).write_text(text)
    assert target_choice.recall() == target_choice.Memory()


def test_a_home_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(env.HOME, str(tmp_path / "file" / "home"))
    target_choice.remember(LAB, "a")
    assert target_choice.recall() == target_choice.Memory()


def test_a_run_that_is_elsewhere(runs, namespace, target, planned):
    runs.make("here")
    submit(target, planned("there"))
    assert target_choice.flags_of_other_target("here", LAB) == "--local"
    assert target_choice.flags_of_other_target("there", HERE) == ""  # nothing was submitted from here
    target_choice.remember(target.name, "there")
    assert target_choice.flags_of_other_target("there", HERE) == "--context lab --namespace team"
    assert target_choice.flags_of_other_target("nowhere", HERE) == ""
    assert target_choice.flags_of_other_target("../here", LAB) == ""
