"""Names of the parameters that the user wants to search, and the arguments of a script that they mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trialplane.job import settings, short_forms
from trialplane.wire.declared import Declared, Option


def declared_space(space: Mapping[str, Any], declared: Declared) -> dict[str, Any]:
    """Return a space with the names of the script's arguments, and with ranges of floats for those that are floats.

    The script may spell a name with dashes, as tyro writes learning-rate, or in capitals, as environment variables are, or
    know it as another flag of the same option. A value in its text or a file may have a longer or a shorter name. A name
    stays as it is if the script has it, or if it could mean several arguments.
    """
    floats = {option.name for option in declared.options if option.kind == "float" or isinstance(option.default, float)}
    named_space = {_declared_name(name, declared): parameter for name, parameter in space.items()}
    return {
        name: short_forms.with_float_range(parameter) if name in floats else parameter
        for name, parameter in named_space.items()
    }


def _declared_name(name: str, declared: Declared) -> str:
    """Return the name of the argument that a name of the space means; the name itself if it means none, or several."""
    options = declared.options
    if name in {option.name for option in options}:
        return name
    candidates = {option.name for option in options if share_names([name], spellings([option]))}
    if not candidates and not remark_on(name, declared):
        # `lr` may mean `optim.lr` of a file, and `net.Model.hidden` may mean `Model.hidden` of the script's text.
        candidates = {
            option.name
            for option in options
            if option.name.endswith(f".{name}")
            or any("." in key and name.endswith(f".{key}") for key in (option.name, *option.aliases))
        }
    return candidates.pop() if len(candidates) == 1 else name


def spellings(options: Sequence[Option]) -> list[str]:
    """Return the names of options, and their flags without dashes."""
    return [text.lstrip("-") for option in options for text in (option.name, option.flag, *option.aliases)]


def share_names(names: Iterable[str], others: Iterable[str]) -> bool:
    """Return whether a name is among others, perhaps in another spelling."""
    return not set(map(settings.normalized, names)).isdisjoint(map(settings.normalized, others))


def remark_on(name: str, declared: Declared) -> str:
    """Return the remark that says why a value of a settings file is not a parameter; "" without one."""
    return next((text for text in declared.left_out if text.startswith(f"{name} of ")), "")
