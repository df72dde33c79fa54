"""Get the objective of the search that a script starts, without that search.

Write a module beside the script, and `entrypoint: optuna:search_objective:objective` in job.yaml:

    # search_objective.py
    from trialplane.integrations.searches import objective_of

    objective = objective_of("search.py")

The search starts with one of these calls:

| library | call |
|---|---|
| Optuna | `study.optimize` |
| hyperopt | `fmin` |
| scikit-learn, scikit-optimize, Optuna | `fit` of a search such as `GridSearchCV`, `BayesSearchCV` or `OptunaSearchCV` |
| scikit-optimize | `gp_minimize`, `forest_minimize`, `gbrt_minimize`, `dummy_minimize` |
| bayesian-optimization | `BayesianOptimization.maximize` |
| keras-tuner | `search` of a tuner |
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import trialplane
from trialplane.integrations import drawing
from trialplane.training import imports

Objective = Callable[[Any], Any]  # called with a trial that has the interface of `optuna.Trial`


class _SearchStarted(BaseException):
    """Raised by the call that starts a search, to end the script. No Exception, so that the script does not catch it."""

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.objective = objective


class _Study:
    """A study that is not created: its `optimize` ends the script, and its other methods do nothing."""

    def optimize(self, func: Objective, *args: Any, **kwargs: Any) -> NoReturn:
        """End the script, and pass on its objective `func`."""
        raise _SearchStarted(func)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return a method that does nothing, for any other method of a study."""
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


_running_scripts: list[Path] = []  # scripts that `objective_of` runs now; searches start as usual outside of it


def objective_of(
    script: str, arguments: Sequence[str] = (), folder: str | None = None, path: Sequence[str] = ()
) -> Objective:
    """Run a script up to the call that starts its search, and return an objective for Optuna.

    No search is started, and no study is created, deleted or copied. The lines before the search run as usual, also those
    that create an object of a storage.

    Args:
        script: Path of the script, relative to the folder of the calling module.
        arguments: Arguments of the script. `$NAME` in one is replaced from the environment.
        folder: Folder in which the script and the objective run, relative to the same folder. Default: the script's own.
        path: Further folders from which the script imports, relative to the same folder.

    Raises:
        LookupError: The script ends before such a call.
        Exception: Any exception of the script.
    """
    for module, replace in _CALLS.items():
        imports.on_import(module, replace)
    caller_folder = Path(sys._getframe(1).f_globals.get("__file__", "")).resolve().parent
    file = caller_folder / script
    run_folder = Path(script).parent if folder is None else Path(folder)
    sys.path += [str(caller_folder / entry) for entry in path]
    with _as_program(file, [os.path.expandvars(argument) for argument in arguments]) as namespace:
        try:
            with contextlib.chdir(caller_folder / run_folder):
                exec(compile(file.read_bytes(), str(file), "exec", dont_inherit=True), namespace)
        except _SearchStarted as search:
            objective = search.objective

            def objective_in_folder(trial: Any) -> Any:
                """Call the objective in the folder of the script; in a trial, in the trial's copy of it."""
                is_in_trial = trialplane.current() is not None  # the working folder is the root of the copy
                with contextlib.chdir(run_folder if is_in_trial else caller_folder / run_folder):
                    return objective(trial)

            return objective_in_folder
    raise LookupError(f"{script} ended without starting a search; `platform docs optuna` lists the calls that start one")


@contextlib.contextmanager
def _as_program(file: Path, arguments: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Context manager in which a script finds what it would if Python had started it; yield its namespace."""
    main = types.ModuleType("__main__")
    main.__file__ = str(file)
    main.__package__ = _package(file)  # for relative imports
    previous_argv, previous_path, previous_main = sys.argv, list(sys.path), sys.modules["__main__"]
    sys.argv, sys.modules["__main__"] = [str(file), *arguments], main
    sys.path.insert(0, str(file.parent))
    _running_scripts.append(file)
    try:
        yield main.__dict__
    finally:
        _running_scripts.pop()
        sys.argv, sys.path, sys.modules["__main__"] = previous_argv, previous_path, previous_main


def _package(file: Path) -> str | None:
    """Return the package of a script, as for `python -m`; None outside of packages."""
    folder = file.parent
    names: list[str] = []
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        names.insert(0, folder.name)
        folder = folder.parent
    return ".".join(names) or None


def _replace(module: types.ModuleType, name: str, in_script: Callable[..., Any]) -> None:
    """Replace a function or method of a library by another one, which is called only while `objective_of` runs a script.

    Args:
        module: Module of the library.
        name: Name of the function, or CLASS.METHOD.
        in_script: Function to call in its place, with the same arguments.
    """
    owner_name, _, last_name = name.rpartition(".")
    owner = getattr(module, owner_name, None) if owner_name else module
    original = getattr(owner, last_name, None)
    if not inspect.isfunction(original):  # another version of the library
        return

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return in_script(*args, **kwargs) if _running_scripts else original(*args, **kwargs)

    setattr(owner, last_name, replacement)


def _replacer(**functions: Callable[..., Any]) -> Callable[[types.ModuleType], None]:
    """Return a function that replaces functions of a module.

    Args:
        **functions: Replacements by name: `fmin`, or `BaseSearchCV__fit` for the method `BaseSearchCV.fit`.
    """

    def replace(module: types.ModuleType) -> None:
        for name, in_script in functions.items():
            _replace(module, name.replace("__", "."), in_script)

    return replace


def _create_study(*args: Any, **kwargs: Any) -> _Study:
    """Return a study without a storage, in place of Optuna's."""
    return _Study()


def _leave_studies(*args: Any, **kwargs: Any) -> None:
    """Do nothing, in place of Optuna's functions that delete or copy a study of the user."""


def _fmin(fn: Callable[..., Any], space: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """End the script with the function and the space of hyperopt's `fmin`."""

    def objective(trial: Any) -> float:
        returned = fn(drawing.draw_hyperopt_value(trial, space))
        if not isinstance(returned, Mapping):
            return float(returned)
        if returned.get("status") == "fail":
            raise RuntimeError("the function of fmin returned the status fail")
        return float(returned["loss"])

    raise _SearchStarted(objective)


def _fit_search(search: Any, X: Any, y: Any = None, **fit_params: Any) -> NoReturn:
    """End the script with the estimator, the space and the data of a search of scikit-learn."""
    space = _space_of_search(search)
    options: dict[str, Any] = {"groups": fit_params.pop("groups", None), "cv": search.cv, "scoring": search.scoring}
    if fit_params:
        options["params"] = fit_params
    has_one_metric = search.scoring is None or isinstance(search.scoring, str) or callable(search.scoring)
    # Of several metrics, `refit` is the name of the decisive one.
    score_key = "test_score" if has_one_metric else f"test_{search.refit}"

    def objective(trial: Any) -> float:
        from sklearn.base import clone  # the script has imported it
        from sklearn.model_selection import cross_validate

        settings = drawing.draw_settings(trial, space)  # with models among the values, which `set_params` would change
        estimator = clone(search.estimator).set_params(**clone(settings, safe=False))
        return float(cross_validate(estimator, X, y, **options)[score_key].mean())

    raise _SearchStarted(objective)


def _space_of_search(search: Any) -> Any:
    """Return the search space of a search of scikit-learn or scikit-optimize, for `drawing.draw_settings`."""
    space = getattr(search, "search_spaces", None)  # of scikit-optimize
    if space is not None:
        return space
    space = getattr(search, "param_grid", None) or search.param_distributions
    parts = [space] if isinstance(space, Mapping) else space
    # A tuple has choices in scikit-learn, but `drawing` would take one of two numbers for bounds.
    return [{name: list(domain) if isinstance(domain, tuple) else domain for name, domain in part.items()} for part in parts]


def _minimize(func: Callable[[list[Any]], Any], dimensions: Sequence[Any], *args: Any, **kwargs: Any) -> NoReturn:
    """End the script with the function and the dimensions of a search of scikit-optimize."""

    def objective(trial: Any) -> float:
        names = [getattr(dimension, "name", None) or f"x{index}" for index, dimension in enumerate(dimensions)]
        values = [drawing.draw_value(trial, name, dimension) for name, dimension in zip(names, dimensions, strict=True)]
        return float(func(values))

    raise _SearchStarted(objective)


def _maximize(optimizer: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """End the script with the function and the bounds of a `BayesianOptimization`."""
    function = optimizer.space.target_func
    bounds = {name: tuple(pair) for name, pair in zip(optimizer.space.keys, optimizer.space.bounds.tolist(), strict=True)}
    if function is None:
        raise LookupError("BayesianOptimization has no function to maximize: its suggest and register are not searches here")

    def objective(trial: Any) -> float:
        return float(function(**drawing.draw_settings(trial, bounds)))

    raise _SearchStarted(objective)


def _search_of_tuner(tuner: Any, *fit_args: Any, **fit_kwargs: Any) -> NoReturn:
    """End the script with the model and the data of a tuner of keras-tuner."""
    longest = getattr(tuner.oracle, "max_epochs", None)  # of Hyperband, which gives each trial a number of epochs
    if longest is not None:
        fit_kwargs = {"epochs": longest, **fit_kwargs}

    def objective(trial: Any) -> float:
        values = drawing.keras_hyperparameters(trial)
        model = tuner.hypermodel.build(values)
        result = tuner.hypermodel.fit(values, model, *fit_args, **fit_kwargs)
        metric = tuner.oracle.objective
        # A hypermodel returns Keras's History, a dict of metrics, or one number.
        history = getattr(result, "history", result)
        measured = history[metric.name] if isinstance(history, Mapping) else history
        epoch_values = measured if isinstance(measured, Sequence) else [measured]
        return float(max(epoch_values) if metric.direction == "max" else min(epoch_values))

    raise _SearchStarted(objective)


# Module of a library → function that replaces its calls. A module that has copied a function needs a line of its own.
_CALLS: Mapping[str, imports.Replace] = {
    **dict.fromkeys(
        ("optuna.study.study", "optuna.study", "optuna"),
        _replacer(
            create_study=_create_study,
            load_study=_create_study,
            delete_study=_leave_studies,
            copy_study=_leave_studies,
        ),
    ),
    **dict.fromkeys(("hyperopt.fmin", "hyperopt"), _replacer(fmin=_fmin)),
    "sklearn.model_selection._search": _replacer(BaseSearchCV__fit=_fit_search),
    "optuna_integration.sklearn.sklearn": _replacer(OptunaSearchCV__fit=_fit_search),
    "skopt.optimizer.base": _replacer(base_minimize=_minimize),
    "bayes_opt.bayesian_optimization": _replacer(BayesianOptimization__maximize=_maximize),
    **dict.fromkeys(
        ("keras_tuner.src.engine.base_tuner", "keras_tuner.engine.base_tuner"),
        _replacer(BaseTuner__search=_search_of_tuner),
    ),
}
