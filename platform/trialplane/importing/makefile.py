"""Makefiles, and calls of make: their targets, variables and recipes.

The text is only parsed, and nothing is made.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple

from trialplane import errors
from trialplane.errors import Issue, SpecError
from trialplane.importing import literals, placeholders, shell
from trialplane.importing.script import Call, Script, Style
from trialplane.job import credentials, settings
from trialplane.wire.declared import Option

_NAMES = ("Makefile", "makefile", "GNUmakefile")
_TARGETS = ("train", "fit", "training", "run", "main", "all")
_PLAIN = r"[^|&;<>$`*?\n]"  # a character without a meaning for the shell
# make && PYTHONPATH=src make train CONFIG=a.yaml
_MAKE = re.compile(
    rf"(?P<before>(?:{_PLAIN}+(?:&&|;) *)*)(?P<head>(?:env +)?(?:[A-Za-z_]\w*={shell.QUOTED} +)*)"
    rf"make(?P<words>(?:\s{_PLAIN}*)?)"
)
# Options of make whose value is the next word, or behind `=`.
_OPTION = re.compile(
    r"(?P<name>-[A-Za-z]*[CfIoW]|--(?:directory|file|makefile|include-dir|old-file|assume-old|what-if|new-file|assume-new))"
    r"(?:=(?P<value>.*))?"
)
_CHANGES_FOLDER = re.compile(r"\b(?:cd|pushd)\b")
_UNKNOWN_RULES = re.compile(r"^(?:[^\t#=:]*[%$]|-?s?include\b)", re.MULTILINE)  # whose targets are not in the text
_TARGET = re.compile(r"^([\w.-]+)[ \t]*:(?!=)", re.MULTILINE)  # train: data
_VARIABLE = re.compile(r"^(?:export[ \t]+)?(\w+)[ \t]*[:?]?=[ \t]*([^\s#$]+)[ \t]*(?:#.*)?$", re.MULTILINE)  # LR ?= 0.1
_DEFAULT = re.compile(r"^(?:export[ \t]+)?(\w+)[ \t]*\?=", re.MULTILINE)  # LR of LR ?= 0.1
_SILENT = re.compile(r"#|echo\b|$")  # a line of a recipe that trains nothing
_DEFINITION = re.compile(r"^(?:export[ \t]+)?(\w+)[ \t]*[:?+]?=(.*)$", re.MULTILINE)  # FLAGS = --lr $(LR)
_RULE = re.compile(r"(?P<targets>[\w./ -]+):(?![:=])(?P<prerequisites>[^#;]*)")  # train eval: data
_REFERENCE = re.compile(r"\$[({](\w+)[)}]")  # $(LR), ${LR}
_MORE_ARGUMENTS = re.compile(r"(?:\w*_)?(?:ARGS|FLAGS|OPTS|EXTRA|PARAMS)")  # usual names of what a user adds to a command


class _MakeCall(NamedTuple):
    """A call of make in a command line.

    Attributes:
        folder: Folder in which it runs, relative to the one in which the command is typed.
        files: Makefiles that it is given.
        words: Its targets and variables, and its options without a value.
        end: Position behind its last word.
    """

    folder: PurePath
    files: list[str]
    words: list[str]
    end: int


class RecipeCommand(NamedTuple):
    """The command of a Makefile's target that a job runs.

    Attributes:
        text: The command; "" if there is none that a job could run.
        remark: Remark on other commands of the target, which a trial leaves out; "" without any.
    """

    text: str = ""
    remark: str = ""


def is_makefile(file: PurePath) -> bool:
    """Return whether a file is a Makefile, by its name."""
    return file.name in _NAMES or file.suffix == ".mk"


def read(text: str, name: str) -> Script:
    """Return the command that makes the first target with a name in `_TARGETS`, and its parameters.

    It is `make` with the numeric variables of the target, or without any a command of its recipe that has named numbers.

    Raises:
        SpecError: No target has a name in `_TARGETS`, as one with another name could deploy or delete something; or there
            are no parameters.
    """
    targets = _targets(text)
    target = _training_target(targets)
    if not target:
        choice = f"; its targets are {errors.shortened(', '.join(targets), 200)}" if targets else ""
        remedy = "name the one that trains: `platform init --from 'make TARGET LR=0.1'`"
        message = f"has no target {', '.join(_TARGETS[:-1])} or {_TARGETS[-1]}{choice}; {remedy}"
        raise SpecError([Issue(("script",), message, source=name)])
    if options := _numeric_variables(text, target):
        command = ("make", target, *(f"{option.name}={{{option.name}}}" for option in options))
        notes = tuple(credentials.upload_notes(text))
        return Script(Style.COMMAND, tuple(options), command=command, paths=shell.paths_in(text), notes=notes)
    recipe_command = _recipe_command(text, target)
    if not recipe_command.text:
        remedy = "write LR ?= 0.1 at its top, and $(LR) in the recipe, for each value to search, or give them to make, as in"
        message = f"has no parameters; {remedy} `platform init --from 'make train LR=0.1'`"
        raise SpecError([Issue(("script",), message, source=name)])
    line, secrets = credentials.extract(recipe_command.text)
    script = placeholders.parse(line, call=shell.find_call(line))
    notes = (*credentials.upload_notes(text, secrets), *filter(None, [recipe_command.remark]))
    return dataclasses.replace(script, notes=notes)


def training_command(makefile: str) -> RecipeCommand:
    """Return the command that trains, in the recipe of a Makefile; an empty one if make itself gets the parameters."""
    target = _training_target(_targets(makefile))
    is_recipe = bool(target) and not _numeric_variables(makefile, target)
    return _recipe_command(makefile, target) if is_recipe else RecipeCommand()


def training_target(makefile: str) -> str:
    """Return the target of a Makefile that trains by its name, or else the first one; "" without a target."""
    targets = _targets(makefile)
    return _training_target(targets) or next(iter(targets), "")


def made_command(command: str, makefile: str) -> RecipeCommand:
    """Return the command with parameters that `make` or `make TARGET` stands for; an empty one for any other command.

    Commands before it, as of `make && make run`, stay as they are. The parameters are the numeric variables in the target's
    recipe, given to make, or else the arguments of a command in the recipe. Variables before `make` are also before that
    command, and those that make gets have their values there. A command of make with numbers stays as it is: these are the
    parameters.

    Args:
        command: Command line.
        makefile: Text of the Makefile; "" without one.
    """
    match = _MAKE.fullmatch(command)  # with the groups `make && `, `PYTHONPATH=src ` and ` train CONFIG=a.yaml`
    if match is None or not makefile or placeholders.has_parameters(command) or _CHANGES_FOLDER.search(match["before"]):
        return RecipeCommand()
    words = shell.split_words(match["words"])
    typed = shell.assignments(words)
    names = [word for word in words if not shell.ASSIGNMENT.fullmatch(word)]
    targets = _targets(makefile)
    target = names[0] if names else next(iter(targets), "")
    if len(names) > 1 or target not in targets:
        return RecipeCommand()
    if variables := _numeric_variables(makefile, target):
        defaults = {option.name: option.default for option in variables if option.name not in typed}
        assignments = [f"{name}={value}" for name, value in {**typed, **defaults}.items()]
        return RecipeCommand(match["before"] + match["head"] + shlex.join(["make", target, *assignments]))
    recipe_command = _recipe_command(makefile, target, typed)
    if not recipe_command.text:
        return recipe_command
    text = f"{match['head']}{recipe_command.text}"
    if match["head"] and set(recipe_command.text) & set("&|;"):  # of which only the first command would get the variables
        text = f"export {match['head'].removeprefix('env ').strip()} && {recipe_command.text}"
    return recipe_command._replace(text=f"{match['before']}{text}")


def possible_paths(command: str) -> list[PurePath]:
    """Return the paths that the Makefile of the last make in a command may have; [] without a make."""
    calls = list(_make_calls(command))
    return [calls[-1].folder / name for name in (calls[-1].files[-1:] or _NAMES)] if calls else []


def with_variables(command: str, makefile: str, names: Collection[str]) -> str:
    """Return a command that gives its last make those of some variables of a Makefile that it lacks, with their values.

    Variables before that make stay there if the Makefile reads them, as in `KIND ?= rbf`. If it has a value of its own, as
    in `KIND = rbf`, they have no effect, and are left out. Names of numbers behind that make are left out, as these are
    parameters of another program.

    Args:
        command: Command line.
        makefile: Text of the Makefile.
        names: Names of variables.
    """
    calls = list(_make_calls(command))
    if not calls:
        return command
    head, rest = command[: calls[-1].end], command[calls[-1].end :]
    _, others = placeholders.for_numbers(rest)
    values = literals.first_values(_VARIABLE.findall(makefile))
    own_names = set(values) - set(_DEFAULT.findall(makefile))  # that the environment does not change
    set_names = shell.assignments(calls[-1].words).keys() | others.keys()
    for name in (name for name in values if name in names and name not in set_names):
        before_make = re.search(rf"(?<!\S){name}=\S+\s+(?=(?:[A-Za-z_]\w*=\S+\s+)*make\b)", head)
        if before_make is None or name in own_names:
            start, end = before_make.span() if before_make else (0, 0)
            head = f"{head[:start]}{head[end:]} {name}={shlex.quote(values[name])}"
    return head + rest


def unmade_names(command: str, makefile: str) -> list[str]:
    """Return the names after `make` for which a Makefile of the working directory has no rule.

    [] for any other command, and if the Makefile may have rules that its text does not show.

    Args:
        command: Command line.
        makefile: Text of the Makefile; "" without one.
    """
    calls = list(_make_calls(command))
    is_make_alone = len(calls) == 1 and _MAKE.fullmatch(command) is not None and calls[0].folder == PurePath()
    if not is_make_alone or calls[0].files or _UNKNOWN_RULES.search(makefile):
        return []
    names = [word for word in calls[0].words if not word.startswith("-") and not shell.ASSIGNMENT.fullmatch(word)]
    rules = (rule for line in makefile.splitlines() if (rule := _RULE.match(line)) is not None)
    made_names = {target for rule in rules for target in rule["targets"].split()}
    return [name for name in names if name not in made_names]


def _make_calls(command: str) -> Iterator[_MakeCall]:
    """Yield the calls of make in a command line."""
    for call in shell.find_calls(command, _make_call):
        folder, files, words = PurePath(call.folder), [], []
        rest = iter(call.arguments)
        for word in rest:
            option = _OPTION.fullmatch(word)
            if option is None:
                words.append(word)
                continue
            value = next(rest, "") if option["value"] is None else option["value"]
            if option["name"].endswith(("C", "directory")):
                folder /= value
            elif re.fullmatch(r"-\w*f|--(?:make)?file", option["name"]):
                files.append(value)
        yield _MakeCall(folder, files, words, call.end)


def _make_call(words: Sequence[str]) -> Call | None:
    """Return the call of make in the words of a simple command; None if it starts another program."""
    program, *make_arguments = words[len(shell.leading_words(words)) :] or [""]
    return Call(program, arguments=tuple(make_arguments)) if PurePath(program).name in ("make", "gmake") else None


def _targets(makefile: str) -> list[str]:
    """Return the targets of a Makefile, in their order, without those of make itself such as `.PHONY`."""
    return [target for target in dict.fromkeys(_TARGET.findall(makefile)) if not target.startswith(".")]


def _training_target(targets: Collection[str]) -> str:
    """Return the first target with a name in `_TARGETS`; "" without one."""
    return next((target for target in _TARGETS if target in targets), "")


def _numeric_variables(text: str, target: str) -> list[Option]:
    """Return the numeric variables of a Makefile that `make TARGET` uses, by name or in the value of another variable."""
    definitions = literals.first_values(_DEFINITION.findall(text))
    prerequisites, recipe = _commands(text, target)
    names = _REFERENCE.findall("\n".join([*prerequisites, *recipe]))
    for name in names:  # the list grows while it is read
        names += [other for other in _REFERENCE.findall(definitions.get(name, "")) if other not in names]
    options = [literals.option_of(name, value) for name, value in literals.first_values(_VARIABLE.findall(text)).items()]
    return [option for option in options if option.kind in ("int", "float") and option.name in names]


def _commands(text: str, target: str) -> tuple[list[str], list[str]]:
    """Return the commands that make runs for the prerequisites of a target, and those of the target's own recipe."""
    prerequisites: dict[str, list[str]] = {}  # by target
    recipes: dict[str, list[str]] = {}
    rule_targets: list[str] = []
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if line.startswith("\t"):
            for name in rule_targets:
                recipes[name].append(line.strip().lstrip("@-"))  # make removes these marks, too
        elif (match := _RULE.match(line)) is not None:
            rule_targets = match["targets"].split()
            for name in rule_targets:
                prerequisites.setdefault(name, []).extend(match["prerequisites"].split())
                recipes.setdefault(name, [])
    names = [target]
    for name in names:  # the list grows while it is read
        names += [other for other in prerequisites.get(name, ()) if other in recipes and other not in names]
    # In make's order, but for prerequisites of the same target.
    return [line for name in reversed(names[1:]) for line in recipes[name]], recipes.get(target, [])


def _recipe_command(text: str, target: str, typed: Mapping[str, str] | None = None) -> RecipeCommand:
    """Return the command in the recipe of a Makefile's target that trains, with the values of variables filled in.

    It is the last one of a Python script with named numbers, or else the last one with named numbers, or else the last one
    of a Python script. It is empty if there is no such command, or if it has other variables.

    Args:
        text: Text of the Makefile.
        target: Target.
        typed: Variables that make gets, which replace those of the Makefile.
    """
    values = {**literals.first_values(_VARIABLE.findall(text)), **(typed or {})}

    def value(reference: re.Match[str]) -> str:
        """Return the value of a variable, which for ARGS in `$(ARGS)` is empty unless it is set; else the reference."""
        name = reference[1]
        # For one target, below an `ifdef`, in an included file, or in the environment.
        in_text = rf"\b{name}\s*[:?+!]*=|^[ \t]*[-s]?include\b|\bdefine\b"
        may_be_set = name in os.environ or re.search(in_text, text, re.MULTILINE)
        return values.get(name, reference[0] if may_be_set or not _MORE_ARGUMENTS.fullmatch(name) else "")

    def with_values(lines: Sequence[str]) -> list[str]:
        """Return the lines that may train, with the values of variables."""
        loud_lines = [line for line in lines if not _SILENT.match(line)]
        return [_REFERENCE.sub(value, line).rstrip() for line in loud_lines]

    prerequisites, recipe = map(with_values, _commands(text, target))
    commands = [line for line in reversed(recipe) if "$" not in line]
    calls = [line for line in commands if shell.find_call(line) is not None]
    with_numbers = [line for line in (*calls, *commands) if list(settings.named_numbers(line))]
    command = next(iter([*with_numbers, *calls]), "")
    others = [line for line in (*prerequisites, *recipe) if line != command]
    if not command or not others:
        return RecipeCommand(command)
    shown_commands = errors.shortened(credentials.extract(" and ".join(f"`{line}`" for line in others))[0], 200)
    return RecipeCommand(command, remark=f"`make {target}` also runs {shown_commands}, which trials leave out")
