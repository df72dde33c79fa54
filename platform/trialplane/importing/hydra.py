"""A Hydra configuration with a sweep in `hydra.sweeper`, the basic sweeper's or Optuna's: https://hydra.cc/docs/advanced/override_grammar/extended/.

The other keys are the script's own: it reads the file itself, so the job's folder gets it too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trialplane.errors import Place, SpecError
from trialplane.importing import search
from trialplane.importing.source import Imported, Source
from trialplane.job import arguments, document

_SWEEPER = ("hydra", "sweeper")
_CALL = re.compile(r"\s*(\w+)\s*\((.*)\)\s*", re.DOTALL)
_PARTS = re.compile(r"""[,=]|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[()\[\]{}]|[^,='"()\[\]{}]+""", re.DOTALL)
_DEEPEST = 10  # calls within calls; tag(log, int(interval(1, 8))) has three
_OBJECTIVE = "objective"  # a sweeper's objective has no name
# Options of Optuna's samplers that the platform sets, or that a job has under the same name.
_OPTIONS = ("n_startup_trials", "n_ei_candidates", "multivariate", "group", "constant_liar", "sigma0", "population_size")
_REASONS = {
    "sweeper.study_name": "is given when the job is submitted: --name",
    "sweeper.storage": "a run has its own ledger; `platform export` writes it as an Optuna study",
    "sweeper.max_batch_size": "trials start one by one, and `parallel` of them run at a time",
    "sweeper.max_failure_rate": "budget.max_failed is a number of trials, not a share",
    "sweeper.custom_search_space": "a function that defines a space for Optuna can be the job's `space: module:function`",
    "hydra.launcher": "trials are started by the platform, `parallel` at a time",
    "hydra.sweep": "a trial has a folder of its own",
    "hydra.run": "is the script's own: it applies in a trial too",
    "hydra": "is the script's own: it applies in a trial too",
}


def read(text: str, name: str, scripts: Mapping[str, str]) -> Imported:
    """The job of a sweep.

    Args:
        text: of the file.
        name: of the file, for messages.
        scripts: Python files beside it and, with `../` before the name, above its folder, name → text.

    Raises:
        SpecError: it has no sweep, or one whose values are of the wrong kind.
    """
    given = Source(document.parse(text, name))
    if not isinstance(given.look(*_SWEEPER), dict):
        given.refuse("has no sweep: it needs `hydra.sweeper` with params")
        return given.imported({}, {})
    for key in given.look():
        if key != "hydra":
            given.take(key)  # the script reads it
    target = given.text(*_SWEEPER, "_target_")
    optuna = "optuna" in f"{target}{given.look('defaults')}".lower() or given.look(*_SWEEPER, "n_trials") is not None
    space: dict[str, Any] = {}
    params: dict[str, Any] = {}
    items: list[str] = []
    for field in ("params", "search_space"):
        for key in given.keys(*_SWEEPER, field):
            _add(given, (*_SWEEPER, field, key), key, optuna, space, params, items)
    if not space:
        given.refuse("has no parameters to search", *_SWEEPER, "params")
    sampler, seed = _sampler(given, optuna)
    script, above = _script(given, scripts)
    reason = (
        "Hydra takes what the function returns; here print it as `objective=…`, or name the metric that the script prints"
    )
    given.note(reason, *_SWEEPER)
    job = {
        "kind": "hpo",
        "script": script,
        "arguments": [*items, f"{{{arguments.HYDRA}}}"] if items else arguments.HYDRA,
        "params": params,
        "space": space,
        "objectives": _objectives(given),
        "sampler": search.short(sampler),
        "trials": search.trials(given.whole(*_SWEEPER, "n_trials"), sampler, space),
        "parallel": given.whole(*_SWEEPER, "n_jobs"),
        "seed": seed,
    }
    copies = [script] if above else [script, re.split(r"[/\\]", name)[-1]]
    return given.imported(job, _REASONS, copies=copies, above=above)


def _script(given: Source, scripts: Mapping[str, str]) -> tuple[str, bool]:
    """The script that Hydra starts, and whether it lies above the file's folder."""
    found = [name for name, text in scripts.items() if "hydra.main" in text]
    if len(found) != 1:
        several = f"{', '.join(found)} use Hydra" if found else "no script beside it uses Hydra"
        given.note(f"the file does not name its script, and {several}: write it into job.yaml", "hydra")
    script = found[0] if found else "train.py"
    return script.removeprefix("../"), script.startswith("../")


def _objectives(given: Source) -> list[dict[str, str]]:
    place = (*_SWEEPER, "direction")
    value = given.look(*place)
    words = given.texts(*place) if isinstance(value, list) else [given.text(*place) or "minimize"]
    for word in words:
        if word not in ("minimize", "maximize"):
            given.refuse(f"{word!r} is not minimize or maximize", *place)
    names = [_OBJECTIVE] if len(words) == 1 else [f"{_OBJECTIVE}_{index}" for index in range(len(words))]
    return [{"metric": name, "direction": word} for name, word in zip(names, words, strict=True)]


def _sampler(given: Source, optuna: bool) -> tuple[dict[str, Any], int | None]:
    place = (*_SWEEPER, "sampler")
    if not optuna:
        return {"name": "grid"}, None
    if given.look(*place) is None:
        return {"name": "tpe"}, None
    word = given.text(*place, "_target_").rpartition(".")[2]
    sampler = search.sampler(word)
    if sampler is None:
        given.note(f"{word!r} has no counterpart; tpe is used", *place, "_target_")
        sampler = {"name": "tpe"}
    for key in _OPTIONS:
        if key in given.keys(*place) and given.look(*place, key) is not None:
            sampler[key] = given.take(*place, key)
    return sampler, given.whole(*place, "seed")


def _add(
    given: Source,
    place: Place,
    key: str,
    optuna: bool,
    space: dict[str, Any],
    params: dict[str, Any],
    items: list[str],
) -> None:
    """One parameter of the sweep: to `space`, or where it has one value, to `params`."""
    name = given.name(key, *place)
    if name != key:
        items.append(f"{key.replace('{', '{{').replace('}', '}}')}={{{name}}}")
    if isinstance(given.look(*place), dict):
        made = _declared(given, place)
    else:
        value = given.take(*place)
        try:
            made = _parsed(value if isinstance(value, str) else document.scalar(str(value), ""), optuna)
        except (SpecError, ValueError, TypeError, ArithmeticError, LookupError):
            given.refuse(f"{str(value)[:60]!r} is not understood: choice, range, interval and lists are", *place)
            return
    if made is None:
        return
    if "type" in made:
        space[name] = made
    else:
        params[name] = made["value"]


def _declared(given: Source, place: Place) -> dict[str, Any] | None:
    """A parameter of `search_space`, as a mapping."""
    kind = given.text(*place, "type")
    if kind == "categorical":
        return search.categorical([given.take(*place, "choices", index) for index in given.indices(*place, "choices")])
    low, high = given.number(*place, "low"), given.number(*place, "high")
    if kind not in ("int", "float") or low is None or high is None:
        given.refuse("needs type int or float with low and high, or categorical with choices", *place)
        return None
    log = given.take(*place, "log") is True
    if log and given.look(*place, "step") is not None:
        given.skip("a logarithmic range has no step here, so it is left out", *place, "step")
    return search.span("int" if kind == "int" else "float", low, high, log=log, step=given.number(*place, "step"))


def _parsed(value: Any, optuna: bool, depth: int = 0) -> dict[str, Any]:
    """A value of Hydra's grammar as a parameter, or `{"value": …}`.

    Raises:
        SpecError, ValueError, TypeError, ArithmeticError, LookupError: it is none.
    """
    if not isinstance(value, str):
        return {"value": value}
    call = _CALL.fullmatch(value)
    if call is None:
        parts = _split(value)
        values = [document.scalar(part, "") for part in parts]
        return search.categorical(values) if len(values) > 1 else {"value": values[0] if values else ""}
    if depth > _DEEPEST:
        raise ValueError("is nested too deeply")
    word, parts = call[1], _split(call[2])
    plain = [part for part in parts if not re.match(r"\w+\s*=", part)]
    named = {part.partition("=")[0].strip(): part.partition("=")[2] for part in parts if part not in plain}
    if word == "choice":
        return search.categorical([document.scalar(part, "") for part in plain])
    if word in ("shuffle", "sort", "tag", "int", "float"):
        made = _parsed(plain[-1] if word in ("tag", "int", "float") else ",".join(plain), optuna, depth + 1)
        if word == "int" and made.get("type") == "float":
            made = search.span("int", made["low"], made["high"], log=made.get("log", False))
        return made | {"log": True} if word == "tag" and "log" in [part.strip() for part in plain[:-1]] else made
    numbers = [document.scalar(part, "") for part in plain]
    if word == "interval":
        return search.span("float", *numbers)
    if word == "range":
        keys = dict(zip(("start", "stop", "step"), numbers, strict=False)) | {
            key: document.scalar(text, "") for key, text in named.items()
        }
        start, stop = (keys["start"], keys["stop"]) if "stop" in keys else (0, keys["start"])
        step = keys.get("step", 1)
        form = "int" if all(isinstance(one, int) for one in (start, stop, step)) else "float"
        # The basic sweeper's range has no end, Optuna's has.
        high = stop if optuna else start + ((stop - start) / step - 1e-9) // 1 * step
        return search.span("int" if form == "int" else "float", start, high, step=step)
    raise ValueError(f"{word} is not known")


def _split(text: str) -> list[str]:
    """What stands between commas that are in no quotes or brackets."""
    made, depth = [""], 0
    for part in _PARTS.findall(text):
        depth += (part in "([{") - (part in ")]}")
        if part == "," and depth == 0:
            made.append("")
        else:
            made[-1] += part
    return [part.strip() for part in made if part.strip()]
