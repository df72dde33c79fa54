"""The source of a function with the imports, constants, functions and classes that it uses, as one module.

This works for scripts, imported modules and the cells of a notebook. Definitions are copied as they were written, and only
those that are used. Annotations are not evaluated in the new module, so the names in them need no definition.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import inspect
import linecache
import math
import subprocess
import symtable
import sys
import textwrap
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trialplane.errors import Issue, SpecError

_MAX_CONSTANT = 64 * 1024  # characters of a constant; a longer one is data
_NOTEBOOK_NAMES = ("get_ipython", "display")  # names that IPython adds to Python's own
_MODULE_NAMES = {*vars(types.ModuleType("")), "__builtins__", "__file__"}  # names that every module has
_BRACKETS: Mapping[type, tuple[str, str]] = {list: ("[", "]"), tuple: ("(", ")"), set: ("{", "}")}
_MISSING = object()  # stands for a module or attribute that does not exist, as no imported value is this object
_FIND_MISSING = "import importlib.util as u, sys; print(*(n for n in sys.argv[1:] if u.find_spec(n) is None))"


def module_of(function: types.FunctionType) -> str:
    """Return the text of a module with a function and everything that it uses of its own module.

    Raises:
        SpecError: Something that it uses cannot be written as source. The issues have every reason, with its fix.
    """
    module_source = _Source(function)
    module_source.define(function, function.__name__, function.__name__)
    module_source.check_installed()
    if module_source.issues:
        raise SpecError(list(dict.fromkeys(module_source.issues)))
    return module_source.text()


class _Source:
    """The parts of the new module, and issues about values that cannot be written as source.

    Args:
        function: Function that is submitted.

    Attributes:
        issues: Issues so far.
    """

    def __init__(self, function: types.FunctionType) -> None:
        self.issues: list[Issue] = []
        self._module = function.__module__
        self._package = str(function.__globals__.get("__package__") or "")
        self._values: dict[str, Any] = {}  # name in the new module → its value in this process
        self._submodules: dict[str, None] = {}  # names as an ordered set, in the order in which they are imported
        self._imports: dict[str, str] = {}  # name → import statement
        self._constants: dict[str, str] = {}  # name → assignment
        self._definitions: dict[str, str] = {}  # name → text of the function or class, in an order that can be executed
        self._issues_if_missing: dict[str, Issue] = {}  # top-level module → the issue if it is not installed
        self._location = _location(function)
        self._cells = _notebook_cells() if self._module == "__main__" else []
        texts = self._cells or ["".join(linecache.getlines(function.__code__.co_filename))]
        self._statements = [statement for text in texts for statement in _import_statements(text)]

    def text(self) -> str:
        """Return the text of the module."""
        doc = '"""What was submitted: a function with all that it uses of its module."""'
        parts = [doc, "", "from __future__ import annotations", "", *(f"import {name}" for name in self._submodules)]
        parts += [*self._imports.values(), "", *self._constants.values()]
        return "\n".join([*parts, *(f"\n\n{text.rstrip()}" for text in self._definitions.values())]) + "\n"

    def define(self, value: Any, name: str, used_by: str) -> None:
        """Add a function or class, after everything that it uses.

        If it is used by another name than its own, as after `g = f`, it is added under its own name, and then this
        assignment.

        Args:
            value: Function or class, without its decorators.
            name: Name by which it is used.
            used_by: Name of the definition that uses it, for issues.
        """
        self._values[name] = value
        own_name = value.__name__
        if own_name != name:
            if self._values.get(own_name, value) is not value:
                self._add_conflict(used_by, own_name)
            elif own_name not in self._values:
                self.define(value, own_name, used_by)
            self._definitions[name] = f"{name} = {own_name}"
            return
        try:
            text = self._source_of(value)
            tree = ast.parse(text)
        except (OSError, TypeError, SyntaxError):
            advice = "define it in a file, or in a notebook's cell that does not begin with %%"
            self._add_issue(used_by, f"the source of {name} cannot be found; {advice}")
            return
        if len(tree.body) != 1 or getattr(tree.body[0], "name", None) != own_name:
            self._add_issue(
                used_by, f"the source of {name} cannot be separated from the code around it; define it with def on its own"
            )
            return
        self._add_used_names(tree, _namespace(value), own_name)
        self._definitions[own_name] = text

    def _add_used_names(self, tree: ast.Module, namespace: Mapping[str, Any], definition: str) -> None:
        """Add everything that a definition uses.

        Args:
            tree: Syntax tree of the definition.
            namespace: Names that it can use.
            definition: Name of the definition.
        """
        used_names, annotation_names = _used_and_annotation_names(tree)
        for used_name in sorted(used_names - {definition}):
            self._add_name(used_name, namespace, definition)
        for used_name in sorted(annotation_names - used_names):  # not evaluated, but a library may read annotations
            if used_name in namespace and used_name not in self._values:
                self._add_import(used_name, namespace[used_name])
        self._add_submodules(tree, namespace)

    def _add_name(self, name: str, namespace: Mapping[str, Any], used_by: str) -> None:
        """Add the value of a global name: as a constant, an import, or a definition.

        Args:
            name: Global name.
            namespace: Names that the definition can use.
            used_by: Name of the definition that uses it, for issues.
        """
        if name in _NOTEBOOK_NAMES and _is_of_ipython(namespace.get(name)):
            self._add_issue(used_by, f"uses {name} (or a % or ! command), which only a notebook has; leave it out")
        elif name in _MODULE_NAMES or (name not in namespace and hasattr(builtins, name)):
            return  # every module has it
        elif name not in namespace:
            self._add_issue(used_by, f"uses {name}, which is not defined; define it first, or make it an argument")
        elif name not in self._values:
            self._add_value(name, namespace[name], used_by)
        elif self._values[name] is not _without_decorators(namespace[name]):  # it was added for another definition
            self._add_conflict(used_by, name)

    def _add_value(self, name: str, value: Any, used_by: str) -> None:
        """Add the value of a name in the first possible form: a constant, an import, or a definition; else an issue.

        Args:
            name: Name of the value.
            value: The value.
            used_by: Name of the definition that uses it, for issues.
        """
        text, inner = _literal_text(value), _without_decorators(value)
        if text is not None and len(text) <= _MAX_CONSTANT:
            self._values[name] = value
            self._constants[name] = f"{name} = {text}"
        elif self._add_import(name, value):
            return
        elif isinstance(inner, (types.FunctionType, type)) and inner.__module__ == self._module:
            self._define_if_possible(inner, name, used_by)
        elif text is not None:
            advice = "save it to a file, and pass the path in params"
            self._add_issue(used_by, f"uses {name}, which is {len(text):,} characters of data; {advice}")
        else:
            kind = type(value).__name__
            article = "an" if kind[:1].lower() in "aeiou" else "a"
            advice = f"make it inside {used_by}, or pass plain values through params"
            self._add_issue(used_by, f"uses {name}, {article} {kind}, which cannot be written as source; {advice}")

    def _define_if_possible(self, value: Any, name: str, used_by: str) -> None:
        """Add a function or class of the same module, see `define`, or an issue if its source cannot be copied."""
        is_in_class = "." in value.__qualname__.rpartition("<locals>.")[2]
        # `inspect` finds the source of a function that is defined in another one, but not that of a class.
        is_class_in_function = isinstance(value, type) and "<locals>" in value.__qualname__
        if value.__name__ == "<lambda>":
            self._add_issue(used_by, f"uses {name}, a lambda, which has no source of its own; write it as def {name}(…)")
        elif is_in_class or is_class_in_function:
            self._add_issue(used_by, f"uses {name}, which is defined inside of another class or function; move it out")
        else:
            self.define(value, name, used_by)

    def _add_import(self, name: str, value: Any) -> bool:
        """Add the import that gives a name its value, for `check_installed` too. Return False if no import does."""
        if name in self._imports:
            return True
        statement = self._existing_import(name, value) or self._derived_import(name, value)
        if statement is None:
            return False
        self._imports[name] = statement.text
        self._values.setdefault(name, _without_decorators(value))
        library = statement.module.partition(".")[0]
        if library not in sys.stdlib_module_names:
            advice = "install it as a package, or submit a job's folder that holds it"
            problem = f"uses {name} of {library}, a module beside your code, which does not travel with it; {advice}"
            self._issues_if_missing.setdefault(library, Issue((name,), problem, *self._location))
        return True

    def _existing_import(self, name: str, value: Any) -> _ImportText | None:
        """Return the import statement of the user's code that gives a name this value now; None without one."""
        for node in self._statements:
            for alias in node.names:
                bound_name = alias.asname or alias.name.partition(".")[0]  # `import a.b` binds a
                if bound_name != name:
                    continue
                # Another value would mean that an assignment came after the import.
                if isinstance(node, ast.ImportFrom):
                    module = self._absolute_module(node)
                    if getattr(sys.modules.get(module), alias.name, _MISSING) is value:
                        return _member_import(module, alias.name, name)
                else:
                    module = alias.name if alias.asname else name  # `import a.b as c` binds a.b instead
                    if sys.modules.get(module, _MISSING) is value:
                        return _module_import(module, name)
        return None

    def _absolute_module(self, node: ast.ImportFrom) -> str:
        """Return the absolute name of the module from which a statement imports; "" if it cannot be known."""
        if not node.level:  # without dots
            return node.module or ""
        relative_name = f"{'.' * node.level}{node.module or ''}"  # from .module import …
        return importlib.util.resolve_name(relative_name, self._package) if self._package else ""

    def _derived_import(self, name: str, value: Any) -> _ImportText | None:
        """Return the import of a value that is a module, or a function or class of another module; None for other values."""
        if isinstance(value, types.ModuleType):
            own_name = value.__name__
            is_importable = own_name != "__main__" and sys.modules.get(own_name) is value
            return _module_import(own_name, name) if is_importable else None
        home_module, own_name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
        if not isinstance(home_module, str) or not callable(value):  # neither a function nor a class
            return None
        is_of_this_module = home_module in (self._module, "__main__")
        is_importable = not is_of_this_module and getattr(sys.modules.get(home_module), own_name, None) is value
        return _member_import(home_module, own_name, name) if is_importable else None

    def _add_submodules(self, tree: ast.Module, namespace: Mapping[str, Any]) -> None:
        """Add `import a.b` for each `a.b.c` in the code, because in a trial no other module may have imported `a.b`."""
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute):
                continue
            # `a.b.c`; something else, such as `f(x).c`, is no name of ours
            first, *attributes = ast.unparse(node).split(".")
            if first not in self._imports:
                continue
            module = namespace.get(first)
            for attribute in attributes:
                if not isinstance(module, types.ModuleType) or f"{module.__name__}.{attribute}" not in sys.modules:
                    break
                self._submodules[f"{module.__name__}.{attribute}"] = None
                module = getattr(module, attribute, None)

    def check_installed(self) -> None:
        """Add an issue for each imported module that a trial would not find, because it is not installed as a package."""
        if not self._issues_if_missing:
            return
        # Like a trial, this interpreter does not search the folder of the script or the working directory.
        command = [sys.executable, "-P", "-c", _FIND_MISSING, *self._issues_if_missing]
        process = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
        self.issues += [self._issues_if_missing[name] for name in process.stdout.split() if name in self._issues_if_missing]

    def _source_of(self, value: Any) -> str:
        """Return the source of a function or class.

        Raises:
            OSError: There is no source.
            TypeError: There is no source, because the value is built in.
        """
        try:
            return textwrap.dedent(inspect.getsource(value))
        except (OSError, TypeError):
            for text in self._cells:  # `inspect` does not find the cell of a class
                for node in _parse(text).body:
                    if isinstance(node, ast.ClassDef) and node.name == value.__name__:
                        return ast.unparse(node)
            raise

    def _add_conflict(self, used_by: str, name: str) -> None:
        """Add the issue that two definitions use different values of the same name."""
        self._add_issue(used_by, f"uses another {name} than what it calls does; rename one of them")

    def _add_issue(self, used_by: str, reason: str) -> None:
        """Add an issue about a definition, at the location of the submitted function."""
        self.issues.append(Issue((used_by,), reason, *self._location))


def _used_and_annotation_names(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Return the global names that a definition uses, and those in its annotations."""
    remover = _AnnotationRemover()
    copied_tree = ast.parse(ast.unparse(tree))  # because the remover changes its tree
    text = ast.unparse(remover.visit(copied_tree))  # `symtable` reads text only

    def walk(table: symtable.SymbolTable) -> Iterator[str]:
        """Yield the global names that a scope and the scopes inside it use."""
        yield from (symbol.get_name() for symbol in table.get_symbols() if symbol.is_global() and symbol.is_referenced())
        for child in table.get_children():
            yield from walk(child)

    return set(walk(symtable.symtable(text, filename="submitted", compile_type="exec"))), remover.names


class _AnnotationRemover(ast.NodeTransformer):
    """Transformer that removes annotations, except those of a class's fields, and collects their names."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._in_class = False

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        """Remove the annotation of the result, and visit the arguments and the body."""
        self._collect_names(node.returns)
        node.returns = None
        return self._visit_children(node, in_class=False)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """Visit the body, in which annotations of fields stay."""
        return self._visit_children(node, in_class=True)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        """Remove the annotation of an argument."""
        self._collect_names(node.annotation)
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Replace the annotation of a variable, unless it is a field of a class: a dataclass needs it."""
        if not self._in_class:
            self._collect_names(node.annotation)
            node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def _visit_children(self, node: ast.AST, *, in_class: bool) -> ast.AST:
        """Visit the nodes in a definition, which is a class or a function, and return the definition."""
        outer_in_class, self._in_class = self._in_class, in_class
        self.generic_visit(node)
        self._in_class = outer_in_class
        return node

    def _collect_names(self, annotation: ast.expr | None) -> None:
        if annotation is not None:
            self.names |= {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}


def _namespace(value: Any) -> Mapping[str, Any]:
    """Return the names that a function or class can use: its module's, and those of its closure."""
    if isinstance(value, type):
        return vars(sys.modules[value.__module__])
    closure = {}
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        try:
            closure[name] = cell.cell_contents
        except ValueError:  # the cell is empty, because the name is defined later
            continue
    return {**value.__globals__, **closure}


def _without_decorators(value: Any) -> Any:
    """Return a decorated function without its decorators, and anything else unchanged."""
    try:
        inner = inspect.unwrap(value) if callable(value) and not isinstance(value, type) else value
    except ValueError:  # an object such as a mock, which returns itself as any attribute, also as `__wrapped__`
        return value
    return inner if isinstance(inner, types.FunctionType) else value


def _is_of_ipython(value: Any) -> bool:
    """Return whether a value is a function of IPython. None, for a name without a value in the module, counts as one."""
    return value is None or str(getattr(value, "__module__", None)).startswith(("IPython", "ipykernel"))


def _literal_text(value: Any) -> str | None:
    """Return a plain value as source code. None for any other value, or one that contains another value."""
    kind = type(value)
    if value is None or kind in (bool, int, str, bytes):
        return repr(value)
    if kind is float:
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if kind is dict:
        keys, items = _literal_texts(value.keys()), _literal_texts(value.values())
        if keys is None or items is None:
            return None
        pairs = (f"{key}: {item}" for key, item in zip(keys, items, strict=True))
        return f"{{{', '.join(pairs)}}}"
    if kind in _BRACKETS and (texts := _literal_texts(value)) is not None:
        if kind is set and not texts:
            return "set()"
        opening, closing = _BRACKETS[kind]
        comma = "," if kind is tuple and len(texts) == 1 else ""
        return f"{opening}{', '.join(texts)}{comma}{closing}"
    return None


def _literal_texts(values: Iterable[Any]) -> list[str] | None:
    """Return plain values as source code. None if any of them is another value."""
    texts = [_literal_text(value) for value in values]
    return None if None in texts else [str(text) for text in texts]


def _import_statements(text: str) -> list[ast.Import | ast.ImportFrom]:
    """Return the import statements in a source text."""
    return [node for node in ast.walk(_parse(text)) if isinstance(node, (ast.Import, ast.ImportFrom))]


def _parse(text: str) -> ast.Module:
    """Return the syntax tree of a source text. Empty if the text is not valid."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):  # a cell that did not run, or text that is not Python
        return ast.Module([], [])


def _notebook_cells() -> list[str]:
    """Return the executed cells of a notebook, newest first. Empty outside of one."""
    return [str(text) for text in reversed(vars(sys.modules["__main__"]).get("In", [])) if text]


class _ImportText(NamedTuple):
    """An import statement.

    Attributes:
        text: Text of the statement.
        module: Name of the imported module.
    """

    text: str
    module: str


def _module_import(module: str, name: str) -> _ImportText:
    """Return the statement that imports a module under a name."""
    return _ImportText(f"import {module}" if module == name else f"import {module} as {name}", module)


def _member_import(module: str, member: str, name: str) -> _ImportText:
    """Return the statement that imports a member of a module under a name."""
    return _ImportText(f"from {module} import {member}" + ("" if member == name else f" as {name}"), module)


def _location(function: types.FunctionType) -> tuple[str, int]:
    """Return file and line of a function. A notebook's cell has no file."""
    file = function.__code__.co_filename
    return (file, function.__code__.co_firstlineno) if Path(file).is_file() else ("notebook", 0)
