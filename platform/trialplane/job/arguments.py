"""The command line of a script or command, built from the parameters of a trial.

An argument may contain placeholders: `{lr}` is the value of a parameter, `{checkpoints}` a fact about the trial (`FACTS`),
and `{{` a brace. An argument `{flags}`, `{hydra}` or `{pairs}` expands to arguments for all parameters that no other
placeholder names: `--lr=0.1`, `lr=0.1` in Hydra's grammar, or `SOLVER.LR 0.1` as yacs reads it. With `{globals}`, parameters
replace the values that the script gives to their names. Pure, and imports nothing heavy.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

# Facts about a trial → their descriptions. A parameter of the same name wins.
FACTS: Mapping[str, str] = {
    "run": "name of the run",
    "trial": "number of the trial, from 0",
    "attempt": "1, or more for a retry",
    "seed": "of the trial, a whole number below 2**32",
    "checkpoints": "folder or URL that outlives the attempt and is shared with the next one",
    "workdir": "scratch folder of the trial",
    "code": "folder of the job's code",
    "cache": "folder shared by all trials",
    "cpus": "cores of the trial",
    "gpus": "GPUs of the trial",
}
FLAGS, HYDRA, PAIRS, GLOBALS = "flags", "hydra", "pairs", "globals"
FOR_ALL = (FLAGS, HYDRA, PAIRS, GLOBALS)  # placeholders for all parameters that no other placeholder names
BOOLEANS = ("switch", "value", "negated")  # formats of booleans in flags; see `build`
LISTS = ("spread", "repeat", "comma", "literal")  # formats of lists in flags; see `build`
_OUT, _IN = re.compile(r"(?:^|_)out(?:put)?(?:_|$)"), re.compile(r"(?:^|_)in(?:put)?(?:_|$)")  # in out_features, size_in
_SIZED_LAYER = re.compile(r"(?:Linear|Conv\dd|Affine)$")  # its first two arguments are what it takes in and puts out
_LAYER_SIZE = re.compile(
    r"hidden|units|neurons|latent|(?:layer|fc|mlp|model)_?(?:size|dim|width|features|channels)|^(?:width|size|dim)$",
    re.IGNORECASE,
)
_NO_CLASSES = ("Error", "Exception", "Exit", "Warning")  # ends of the names of exceptions, whose numbers are exit codes
_DICT_TYPES = ("dict", "OrderedDict", "ConfigDict", "EasyDict", "AttrDict", "Namespace", "SimpleNamespace", "Config")
_SIZED_NUMBER = re.compile(r"(?:float|u?int)\d+")  # the type of numpy's float32(0.1)
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")  # the group is the name; there is none for a doubled brace
# Hydra reads these as plain text; everything else is quoted.
_PLAIN = re.compile(r"[A-Za-z_./][\w./:@%+-]*")
_KEYWORDS = ("true", "false", "null", "nan", "inf", "none", "yes", "no", "on", "off")  # parsed as other values if unquoted


def placeholders(arguments: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the index of an argument and the name of a placeholder in it, for each placeholder."""
    for index, text in enumerate(arguments):
        for match in _PLACEHOLDER.finditer(text):
            if match[1] is not None:
                yield index, match[1]


def renamed(text: str, names: Mapping[str, str]) -> str:
    """Return an argument with other names in its placeholders: `--lr={rate}` for `--lr={lr}` and {"lr": "rate"}."""
    return _PLACEHOLDER.sub(lambda match: f"{{{names[match[1]]}}}" if match[1] in names else match[0], text)


def escaped(text: str) -> str:
    """Return a text with its braces doubled, so that an argument has the text unchanged, and no placeholder."""
    return text.replace("{", "{{").replace("}", "}}")


def is_known(name: str, argument: str, parameters: Collection[str]) -> bool:
    """Whether a placeholder names something that an argument can have: a parameter, which may be null, or a fact.

    Args:
        name: Name of a parameter, of a fact, or of a placeholder for all parameters.
        argument: The whole argument. A placeholder for all parameters must be one by itself.
        parameters: Names of the parameters.
    """
    return name in parameters or name in FACTS or (name in FOR_ALL and argument == f"{{{name}}}")


def build(
    arguments: Sequence[str],
    params: Mapping[str, Any],
    facts: Mapping[str, Any],
    booleans: str = "switch",
    lists: str = "spread",
) -> list[str]:
    """Return the arguments of a trial.

    An argument whose parameter does not exist in this trial, because of a condition, is left out together with the option
    before it: both parts of `--momentum {momentum}`.

    Args:
        arguments: Arguments with placeholders.
        params: Parameters of the trial, by name.
        facts: Facts about the trial, by the names in `FACTS`.
        booleans: Format of booleans in flags. switch: `--amp` or nothing; negated: `--amp` or `--no-amp`; value:
            `--amp=True`, `--amp=False`.
        lists: Format of lists in flags. spread: `--sizes 64 32`; repeat: `--sizes=64 --sizes=32`; comma:
            `--sizes=64,32`; literal: `--sizes=[64, 32]`.
    """
    placeholder_names = {name for _, name in placeholders(arguments)}
    other_params = {name: value for name, value in params.items() if name not in placeholder_names}
    values = {**facts, **params}
    command_line: list[str] = []
    follows_option = False  # whether the argument before is an option without a value, such as --momentum
    for argument in arguments:
        names_without_value = [name for _, name in placeholders([argument]) if not is_known(name, argument, values)]
        if names_without_value:
            if follows_option:
                command_line.pop()
            follows_option = False
            continue
        follows_option = argument.startswith("-") and not set("{}") & set(argument)
        match = _PLACEHOLDER.fullmatch(argument)
        name = match[1] if match else None  # of the placeholder that is the whole argument
        if name in FOR_ALL and name not in params:  # a parameter called "flags" wins over the placeholder for all
            command_line += _arguments_for_all(name, other_params, booleans, lists)
        elif name is not None and isinstance(values[name], (list, tuple)):
            command_line += [_text(item) for item in values[name]]  # an argument for each item
        else:
            command_line.append(_PLACEHOLDER.sub(lambda match: _filled(match, values), argument))
    return command_line


def _arguments_for_all(placeholder: str, params: Mapping[str, Any], booleans: str, lists: str) -> list[str]:
    """Return the arguments that replace one of `FOR_ALL`, for parameters that no other placeholder names; see `build`."""
    if placeholder == FLAGS:
        return list(_flags(_flatten(params), booleans, lists))
    if placeholder == HYDRA:
        return [f"{name}={_hydra_text(value)}" for name, value in params.items()]
    if placeholder == PAIRS:
        return [word for name, value in params.items() if value is not None for word in (name, str(value))]
    return []  # for globals: parameters replace values in the script, and are not arguments


def first_assignments(tree: ast.Module) -> dict[str, Spot]:
    """Return the position of the first value of each name at the top level of a script or in its main block."""
    return {name: positions[0] for name, positions in _assignments(tree).items()}


def _assignments(tree: ast.Module) -> dict[str, list[Spot]]:
    """Return the positions of the values of each name at the top level of a script or in its main block."""
    assignments: dict[str, list[Spot]] = {}
    main_statements = [statement for block in tree.body if is_main(block) for statement in block.body]
    for node in [*tree.body, *main_statements]:
        for target, spot in _assigned(node):
            if isinstance(target, ast.Name):
                assignments.setdefault(target.id, []).append(_unwrapped(spot))
    return assignments


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, Spot]]:
    """Yield the targets of an assignment, each with the position of its value."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):  # lr, depth = 0.1, 3
            if len(targets) == len(values) and not any(isinstance(value, ast.Starred) for value in values):
                yield from ((target, Spot(values, index)) for index, target in enumerate(targets))
        case ast.Assign(targets=[target]):  # lr = 0.1
            yield target, Spot(node)
        case ast.Assign(targets=targets, value=ast.Constant()):  # width = depth = 3
            yield from ((target, Spot(node, index, is_chained=True)) for index, target in enumerate(targets))
        case ast.AnnAssign(target=target, value=ast.expr()):  # lr: float = 0.1
            yield target, Spot(node)


def _unwrapped(spot: Spot) -> Spot:
    """Return the position of the number in `np.float32(0.1)`, and any other position unchanged."""
    match spot.value:
        case ast.Call(func=ast.Attribute(attr=name), args=[number]) if _SIZED_NUMBER.fullmatch(name) and _is_number(number):
            return Spot(spot.value.args)
    return spot


def is_main(node: ast.stmt) -> TypeGuard[ast.If]:
    """Whether a statement is `if __name__ == "__main__":`."""
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


@dataclasses.dataclass(frozen=True)
class Spot:
    """The position of a name's value in the syntax tree of a script.

    Attributes:
        parent: Node whose attribute `value` is the value's expression, or the list of nodes that contains the expression.
        index: Index in the list, or of the target of an assignment with several.
        others: Other positions at which the name has a number that is meant, too. `put` replaces it there as well.
        owner: Class, function, call, object or dict that has the name; "" for none.
        is_default: Whether it is the default of a function's argument, which callers may override.
        is_positional: Whether it is a positional argument in a call of a function of the script.
        is_numbered: Whether it is one of several keywords of calls with the same name, and a number tells it from them.
        is_shared: Whether one layer puts the number out and the next one takes it in.
        is_chained: Whether an assignment gives the value to several targets: `width = depth = 3`.
        is_unnamed_text: Whether it is a text in a call that has no other name than that of its place in the call.
    """

    parent: Any
    index: int = 0
    others: tuple[Spot, ...] = ()
    owner: str = ""
    is_default: bool = False
    is_positional: bool = False
    is_numbered: bool = False
    is_shared: bool = False
    is_chained: bool = False
    is_unnamed_text: bool = False

    @property
    def value(self) -> ast.expr | None:
        """Expression of the value. None if an annotated name has none."""
        value: ast.expr | None = self.parent[self.index] if isinstance(self.parent, list) else self.parent.value
        return value

    def longer_names(self, name: str) -> tuple[str, ...]:
        """Return the names with what has the value, such as `Encoder.dropout` for `dropout`."""
        return tuple(dict.fromkeys(f"{spot.owner}.{name}" for spot in (self, *self.others) if spot.owner))

    def put(self, value: ast.expr) -> None:
        """Replace the value's expression, also at the other positions."""
        if self.is_chained:
            targets, old = self.parent.targets, self.parent.value
            if len(targets) > 1:  # width = depth = 3 becomes width, depth = 3, 3
                self.parent.targets = [ast.Tuple(targets, ast.Store())]
                self.parent.value = ast.Tuple([old] * len(targets), ast.Load())
            self.parent.value.elts[self.index] = value
        elif isinstance(self.parent, list):
            self.parent[self.index] = value
        else:
            self.parent.value = value
        for other in self.others:
            other.put(value)


def spots(tree: ast.Module) -> dict[str, Spot]:
    """Return the position of the value that a parameter can replace, by name.

    - A name that is assigned at the top level or in the main block has the value of its first assignment. If that is a
      number, it has the last number that is assigned to it there, and stands for all of them.
    - Any other name has the constant that a call, a dict, an item, an attribute or a class gives it: `Adam(lr=0.1)`. Without
      one, it has the number or text that a call of the script's own function gives it by position: `train(30)` after
      `def train(epochs)`. Without that, it has the default of a function's argument: `def train(lr=0.1)`. A constant is a
      number, a text or a boolean.
    - If there are several such constants, it is unknown which one is meant, and the name is left out. But if all are the
      same number with a decimal point, it stands for all of them.
    - A constant whose name is left out has a longer name instead, with its owner, if only this constant has it:
      `Encoder.dropout` for `Encoder(dropout=0.1)`.
    - A number that is the first argument of a class has the name of the class: `Dropout(0.5)`. That of the second such call
      is `Dropout_2`.
    - The number of a keyword that has no name by these rules is numbered as well: the second `Net(width=8)` is `width_2`.
    - A whole number that one layer puts out and the next one takes in has one name, which stands for both: `Linear_2` in
      `Linear(8, 50), Linear(50, 4)`, and `size_out` in `Dense(size_in=8, size_out=50), Dense(size_in=50, size_out=4)`.
    - A text that a call has by position, and that has no name by these rules, has that of what is called and its index:
      `compile.0` for `model.compile("adam")`. That of the second such call is `compile.0_2`.
    """
    top_level = {name: _assigned_spot(positions) for name, positions in _assignments(tree).items()}
    by_name: dict[str, list[Spot]] = {}
    by_owner_and_name: dict[tuple[str, str], list[Spot]] = {}
    for name, spot in _constant_spots(tree):
        if name not in top_level:
            by_name.setdefault(name, []).append(spot)
            by_owner_and_name.setdefault((spot.owner, name), []).append(spot)
    unambiguous: dict[str, Spot] = {}
    for name, all_spots in by_name.items():
        called = {spot.owner for spot in all_spots if spot.is_positional}
        # Such a call overrides the default of its own function, not that of another one.
        ranks = [(spot.is_default or spot.is_positional, spot.is_default and spot.owner in called) for spot in all_spots]
        first, *others = [spot for spot, rank in zip(all_spots, ranks, strict=True) if rank == min(ranks)]
        if not others or _are_same_float([first, *others]):
            unambiguous[name] = dataclasses.replace(first, others=tuple(others))
    longer_named = {
        f"{owner}.{name}": owned_spots[0]
        for (owner, name), owned_spots in by_owner_and_name.items()
        if owner and name not in unambiguous and len(owned_spots) == 1
    }
    named = longer_named | top_level | unambiguous
    unnamed = _text_spots(tree, named) | _numbered_spots(tree, named) | first_argument_spots(tree)
    return _linked(tree, unnamed | named)


def shown_names(spots: Mapping[str, Spot]) -> list[str]:
    """Return the names of values for a message. Texts without a name of their own are too many."""
    return [name for name, spot in spots.items() if not spot.is_unnamed_text]


def similar_size(name: str, shared_names: Iterable[str]) -> str:
    """Return the first name of a number that layers share if an unknown name, such as hidden_size, may mean it; or ""."""
    return next(iter(shared_names), "") if _LAYER_SIZE.search(name) else ""


def _linked(tree: ast.Module, spots: Mapping[str, Spot]) -> dict[str, Spot]:
    """Return positions by name, with one name for a whole number that one layer puts out and the next one takes in."""
    names = {id(spot.value): name for name, spot in spots.items()}  # by identity: equal values are different nodes
    linked = dict(spots)
    last_outputs: dict[str, Spot] = {}  # class → what its last layer puts out
    for call in _calls_in_order(tree):
        layer = ast.unparse(call.func)
        inputs, outputs = _layer_size(call, 0, _IN), _layer_size(call, 1, _OUT)
        last_output = last_outputs.pop(layer, None)
        if inputs is not None and last_output is not None and _number(inputs) == _number(last_output):
            shared_names = [names[id(spot.value)] for spot in (last_output, inputs) if id(spot.value) in names]
            for name in shared_names[1:]:
                linked.pop(name, None)
            if shared_names:  # the first name keeps its place in the text
                shared = dataclasses.replace(last_output, others=(inputs,), is_numbered=True, is_shared=True)
                linked[shared_names[0]] = shared
        if outputs is not None:
            last_outputs[layer] = outputs
    return linked


def _layer_size(call: ast.Call, index: int, words: re.Pattern[str]) -> Spot | None:
    """Return the position of a whole number that is a size of a layer; None without one.

    Args:
        call: Call that may create a layer.
        index: Index of the size among its positional arguments, which count only for layers that are known to have it.
        words: Pattern for the keyword that may give it instead.
    """
    candidates = [Spot(keyword) for keyword in call.keywords if keyword.arg and words.search(keyword.arg)]
    if _SIZED_LAYER.search(ast.unparse(call.func)) and len(call.args) > index:
        candidates.append(Spot(call.args, index))
    return candidates[0] if candidates and _number(candidates[0]) is not None else None


def _number(spot: Spot) -> int | None:
    """Return the whole number at a position; None without one."""
    value = spot.value.value if isinstance(spot.value, ast.Constant) else None
    return value if type(value) is int else None


def _constant_spots(tree: ast.Module) -> Iterator[tuple[str, Spot]]:
    """Yield each name to which a script gives a number, a text or a boolean, with the position of that value."""
    names_by_call = signatures(tree)
    for node, owner in _nodes_with_owners(tree):
        for name, position in (*_values_in(node), *_positional_constants(node, names_by_call)):
            spot = _unwrapped(position)
            if isinstance(spot.value, ast.Constant) and isinstance(spot.value.value, (int, float, str)):
                yield name, dataclasses.replace(spot, owner=owner, is_default=isinstance(node, ast.arguments))


def signatures(tree: ast.Module) -> dict[str, Sequence[str]]:
    """Return the names of the positional arguments of a script's functions and classes, and of the methods of its objects.

    The key is what is called: `train`, `Net`, and `net.fit` after `net = Net()`. One with several meanings is left out.
    """
    meanings: dict[str, set[tuple[str, ...]]] = {}
    methods: dict[str, dict[str, tuple[str, ...]]] = {}  # of each class
    top_level = set(tree.body)
    for node in ast.walk(tree):  # the classes of a module come before the statements in its functions
        match node:
            case ast.ClassDef(name=name, body=body):
                functions = [item for item in body if isinstance(item, ast.FunctionDef) and not item.decorator_list]
                methods[name] = {function.name: _positional_names(function)[1:] for function in functions}
                meanings.setdefault(name, set()).add(methods[name].get("__init__", ()))
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id=class_name))):
                for method, names in methods.get(class_name, {}).items():
                    meanings.setdefault(f"{name}.{method}", set()).add(names)
            case ast.FunctionDef(name=name) if node in top_level:  # and no method
                meanings.setdefault(name, set()).add(_positional_names(node))
    return {name: next(iter(all_names)) for name, all_names in meanings.items() if len(all_names) == 1}


def _positional_names(function: ast.FunctionDef) -> tuple[str, ...]:
    """Return the names of the positional arguments of a function."""
    return tuple(argument.arg for argument in (*function.args.posonlyargs, *function.args.args))


def _positional_constants(node: ast.AST, names_by_call: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, Spot]]:
    """Yield the numbers and texts that a call gives to arguments by position, with their names.

    A number that has the name of a class is left out.
    """
    if not isinstance(node, ast.Call) or not any(_is_number(value) or _is_text(value) for value in node.args):
        return
    function = ast.unparse(node.func)
    is_class = function.rpartition(".")[2][0].isupper()  # see `first_argument_spots`
    for index, (name, value) in enumerate(zip(names_by_call.get(function, ()), node.args, strict=False)):
        if isinstance(value, ast.Starred):  # it stands for an unknown number of arguments
            return
        if _is_text(value) or (_is_number(value) and (index or not is_class)):
            yield name, Spot(node.args, index, is_positional=True)


def _text_spots(tree: ast.Module, named: Mapping[str, Spot]) -> dict[str, Spot]:
    """Return the positions of texts that calls have by position: `compile.0` and `compile.0_2` for two `compile("adam")`.

    Those that have a name of their own are left out.
    """
    named_values = _identities(named)
    counts: Counter[str] = Counter()
    positions: dict[str, Spot] = {}
    for call in _calls_in_order(tree):
        match call.func:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                for index, value in enumerate(call.args):
                    if _is_text(value) and id(value) not in named_values:
                        key = f"{name}.{index}"
                        counts[key] += 1
                        positions[_numbered(key, counts[key])] = Spot(call.args, index, is_unnamed_text=True)
    return positions


def _calls_in_order(tree: ast.Module) -> list[ast.Call]:
    """Return the calls in a script, in the order of its text."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return sorted(calls, key=lambda call: (call.lineno, call.col_offset))


def _identities(named: Mapping[str, Spot]) -> set[int]:
    """Return the identities of the values at some positions, because two equal values in a script are two nodes."""
    return {id(position.value) for spot in named.values() for position in (spot, *spot.others)}


def _numbered_spots(tree: ast.Module, named: Mapping[str, Spot]) -> dict[str, Spot]:
    """Return the positions of calls' keywords of the same name, numbered: `width` and `width_2` for two `Net(width=8)`.

    Those that have a name of their own are left out.
    """
    named_values = _identities(named)
    calls = filter(_has_settings, _calls_in_order(tree))
    keywords = [keyword for call in calls for keyword in call.keywords if keyword.arg and _is_number(keyword.value)]
    counts: Counter[str] = Counter()
    positions: dict[str, Spot] = {}
    for keyword in sorted(keywords, key=lambda keyword: (keyword.lineno, keyword.col_offset)):
        name = str(keyword.arg)
        if name not in named and id(keyword.value) not in named_values:
            counts[name] += 1
            positions[_numbered(name, counts[name])] = Spot(keyword, is_numbered=True)
    return positions


def _has_settings(call: ast.Call) -> bool:
    """Whether the keywords of a call may be settings. Not in `dict(lr=0.1)` and `add_argument("--lr", default=0.1)`."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name not in _DICT_TYPES and not name.startswith("add_")
    return False


def _numbered(name: str, number: int) -> str:
    """Return the name of one of several values: `Dense`, `Dense_2`, `Dense_3`."""
    return name if number == 1 else f"{name}_{number}"


def first_argument_spots(tree: ast.Module) -> dict[str, Spot]:
    """Return the positions of the numbers that are the first argument of a class, by name, see `spots`."""
    counts: Counter[str] = Counter()
    positions: dict[str, Spot] = {}
    for call in _calls_in_order(tree):
        match call.func:
            # By convention, the name of a class begins with an upper-case letter.
            case ast.Name(id=name) | ast.Attribute(attr=name) if (
                call.args and _is_number(call.args[0]) and name[0].isupper() and not name.endswith(_NO_CLASSES)
            ):
                counts[name] += 1
                positions[_numbered(name, counts[name])] = Spot(call.args)
    return positions


def _assigned_spot(positions: Sequence[Spot]) -> Spot:
    """Return the position of a name's value from those of its assignments at the top level; for the rules see `spots`."""
    if not _is_number(positions[0].value):
        return positions[0]
    *others, last = [spot for spot in positions if _is_number(spot.value)]
    return dataclasses.replace(last, others=tuple(others))


def _is_number(node: ast.expr | None) -> bool:
    """Whether an expression is a number, which may have a sign."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
        node = node.operand
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool)


def _is_text(node: ast.expr) -> bool:
    """Whether an expression is a text."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _nodes_with_owners(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Yield each node of a script with its owner: the name of the thing to which the values in the node belong.

    That is the class, function or call around it, the object whose attribute it sets, or the name or key of the dict. It is
    "" at the top level. In all examples in this function, `model` is the owner of `width`.
    """
    pending: deque[tuple[ast.AST, str]] = deque([(tree, "")])
    while pending:
        node, owner = pending.popleft()
        owner_of_children = owner
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                owner_of_children = owner if name == "__init__" else name  # its arguments belong to the class
            case ast.Assign(targets=[target]) | ast.AnnAssign(target=target) if not isinstance(
                target, (ast.Tuple, ast.List)
            ):
                if isinstance(target, (ast.Attribute, ast.Subscript)) and ast.unparse(target.value) != "self":
                    owner = ast.unparse(target.value).rpartition(".")[2]  # config.model.width = 8
                owner_of_children = ast.unparse(target).rpartition(".")[2]  # model = {"width": 8}
                if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
                    owner_of_children = str(target.slice.value)  # config["model"] = {"width": 8}
            case ast.keyword(arg=str(name)):
                owner_of_children = name  # f(model={"width": 8})
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name not in _DICT_TYPES:
                owner = owner_of_children = name  # model(width=8)
        yield node, owner
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):  # {"model": {"width": 8}}
                key_value = key.value if isinstance(key, ast.Constant) else None
                pending.append((value, key_value if isinstance(key_value, str) else owner))
        else:
            pending += [(child, owner_of_children) for child in ast.iter_child_nodes(node)]


def _are_same_float(spots: Sequence[Spot]) -> bool:
    """Whether the values at all positions are the same number with a decimal point.

    Whole numbers may be equal by chance: a class and a function may both have `size=2`.
    """
    values = [spot.value.value if isinstance(spot.value, ast.Constant) else None for spot in spots]
    return isinstance(values[0], float) and len(set(values)) == 1


def _values_in(node: ast.AST) -> Iterator[tuple[str, Spot]]:
    """Yield each name to which a node gives a value, with the position of the value."""
    match node:
        case ast.keyword(arg=str(name)):  # f(lr=0.1)
            yield name, Spot(node)
        case ast.Assign():
            for target, spot in _assigned(node):
                match target:  # lr = 0.1; self.lr = 0.1; params["lr"] = 0.1
                    case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
                        yield name, spot
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant()):  # lr: float = 0.1
            yield name, Spot(node)
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.Call(args=[_, *_] as call_args)):  # lr: float = Field(0.1)
            yield name, Spot(call_args, index=0)
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.Call(keywords=keywords)):  # lr: float = field(default=0.1)
            yield from ((name, Spot(keyword)) for keyword in keywords if keyword.arg == "default")
        case ast.Call(args=[ast.Constant(value=str()), *_] as flags, keywords=keywords):
            # add_argument("-l", "--lr", default=0.1)
            texts = [flag.value for flag in flags if isinstance(flag, ast.Constant) and isinstance(flag.value, str)]
            name = next((text for text in texts if text.startswith("--")), texts[0]).lstrip("-")
            yield from ((name, Spot(keyword)) for keyword in keywords if keyword.arg == "default")
        case ast.Dict():  # {"lr": 0.1}
            for index, key in enumerate(node.keys):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value, Spot(node.values, index)
        case ast.arguments():  # def f(lr=0.1)
            positional = [*node.posonlyargs, *node.args]
            with_default = positional[len(positional) - len(node.defaults) :]  # defaults belong to the last ones
            for index, argument in enumerate(with_default):
                yield argument.arg, Spot(node.defaults, index)
            for index, argument in enumerate(node.kwonlyargs):
                yield argument.arg, Spot(node.kw_defaults, index)


def replace_values(tree: ast.Module, params: Mapping[str, Any]) -> ast.Module:
    """Replace the values of names in a script by parameters, see `spots`. Return the changed tree."""
    for name, spot in spots(tree).items():
        if name in params and (value := spot.value) is not None:
            spot.put(ast.copy_location(_expression(params[name]), value))
    return ast.fix_missing_locations(tree)


def _expression(value: Any) -> ast.expr:
    """Return a JSON value as an expression. Infinity and NaN, which have no literal, become constants."""
    if isinstance(value, dict):
        return ast.Dict([ast.Constant(key) for key in value], [_expression(item) for item in value.values()])
    if isinstance(value, (list, tuple)):
        return ast.List([_expression(item) for item in value], ast.Load())
    return ast.Constant(value)


def _filled(match: re.Match[str], values: Mapping[str, Any]) -> str:
    """Return the text that replaces a placeholder, or the single brace that replaces a doubled one."""
    if match[1] is None:  # {{ or }}
        return match[0][0]
    value = values[match[1]]
    return ",".join(map(_text, value)) if isinstance(value, (list, tuple)) else _text(value)


def _text(value: Any) -> str:
    """Return a value as text. null is empty."""
    return "" if value is None else str(value)


def _flatten(params: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values in nested mappings, by dotted names. An empty mapping is a value."""
    flattened: dict[str, Any] = {}
    for name, value in params.items():
        if isinstance(value, dict) and value:
            flattened |= _flatten(value, f"{prefix}{name}.")
        else:
            flattened[prefix + name] = value
    return flattened


def _flags(params: Mapping[str, Any], booleans: str, lists: str) -> Iterator[str]:
    """Yield an option for each parameter that is not null, in the form of argparse, click and fire; see `build`."""
    for name, value in params.items():
        flag = f"--{name}"
        if isinstance(value, bool) and booleans != "value":
            if value:
                yield flag
            elif booleans == "negated":
                yield f"--no-{name}"
        elif isinstance(value, (list, tuple)):
            yield from _list_flags(flag, value, lists)
        elif value is not None:
            yield f"{flag}={value}"  # with "=", so that a negative number is not taken for another option


def _list_flags(flag: str, value: Sequence[Any], lists: str) -> Iterator[str]:
    """Yield the arguments for an option whose value is a list, in one of the formats `LISTS`; see `build`."""
    if lists == "spread":
        yield from (flag, *map(_text, value))
    elif lists == "repeat":
        yield from (f"{flag}={_text(item)}" for item in value)
    elif lists == "comma":
        yield f"{flag}={','.join(map(_text, value))}"
    else:
        yield f"{flag}={list(value)!r}"


def _hydra_text(value: Any) -> str:
    """Return a value in the grammar of Hydra's overrides: https://hydra.cc/docs/advanced/override_grammar/basic/."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_hydra_text, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{_hydra_text(item)}" for name, item in value.items()) + "}"
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _KEYWORDS:
        return text
    # A backslash escapes a quote, it's becomes 'it\'s', so backslashes before a quote, also the closing one, are doubled.
    quoted = re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), text)
    return f"'{quoted}'"
