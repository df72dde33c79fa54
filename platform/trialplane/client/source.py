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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trialplane.errors import Issue, SpecError

_MAX_CONSTANT = 64 * 1024  # characters of a constant; a longer one is data
_NOTEBOOK_NAMES = ("get_ipython", "display")  # names that IPython adds to Python's own
_MODULE_NAMES = {*vars(types.ModuleType("")), "__builtins__", "__file__"}  # names that every module has
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
        namespace = _namespace(value)
        names, annotation_names = _names(tree)
        for used_name in sorted(names - {own_name}):
            self._add_name(used_name, namespace, own_name)
        for used_name in sorted(annotation_names - names):  # annotations are not evaluated, but a library may read them
            if used_name in namespace and used_name not in self._values:
                self._add_import(used_name, namespace[used_name])
        self._add_submodules(tree, namespace)
        self._definitions[own_name] = text

    def _add_name(self, name: str, namespace: Mapping[str, Any], used_by: str) -> None:
        """Add the value of a global name: as a constant, an import, or a definition.

        Args:
            name: Global name.
            namespace: Names that the definition can use.
            used_by: Name of the definition that uses it, for issues.
        """
        value = namespace.get(name, getattr(builtins, name, None))
        inner = _without_decorators(value)
        home_module = getattr(inner, "__module__", None)
        is_of_ipython = name not in namespace or str(home_module).startswith(("IPython", "ipykernel"))
        if name in _NOTEBOOK_NAMES and is_of_ipython:
            self._add_issue(used_by, f"uses {name} (or a % or ! command), which only a notebook has; leave it out")
        elif name in _MODULE_NAMES or (name not in namespace and hasattr(builtins, name)):
            return  # every module has it
        elif name not in namespace:
            self._add_issue(used_by, f"uses {name}, which is not defined; define it first, or make it an argument")
        elif name in self._values:  # it was added for another definition
            if self._values[name] is not inner:
                self._add_conflict(used_by, name)
        elif (text := _literal_text(value)) is not None and len(text) <= _MAX_CONSTANT:
            self._values[name] = value
            self._constants[name] = f"{name} = {text}"
        elif self._add_import(name, value):
            return
        elif home_module == self._module and isinstance(inner, (types.FunctionType, type)):
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
        statement_and_module = self._import_statement(name, value)
        if statement_and_module is None:
            return False
        statement, module = statement_and_module
        self._imports[name] = statement
        self._values.setdefault(name, _without_decorators(value))
        library = module.partition(".")[0]
        if library not in sys.stdlib_module_names:
            advice = "install it as a package, or submit a job's folder that holds it"
            problem = f"uses {name} of {library}, a module beside your code, which does not travel with it; {advice}"
            self._issues_if_missing.setdefault(library, Issue((name,), problem, *self._location))
        return True

    def _import_statement(self, name: str, value: Any) -> tuple[str, str] | None:
        """Return a statement that imports a value under a name, and the name of the imported module; None if there is none.

        A statement of the user's code is preferred. Otherwise the statement is derived from the value's own name. In both
        cases, the statement counts only if it would give this very value now.
        """
        return self._existing_import(name, value) or self._derived_import(name, value)

    def _existing_import(self, name: str, value: Any) -> tuple[str, str] | None:
        """Return the import statement of the user's code that gives a name this value; see `_import_statement`."""
        for node in self._statements:
            for alias in node.names:
                bound_name = alias.asname or alias.name.partition(".")[0]
                if bound_name != name:
                    continue
                if isinstance(node, ast.Import):
                    module = alias.name if alias.asname else name
                    if sys.modules.get(module, _MISSING) is value:
                        return f"import {alias.name} as {name}" if alias.asname else f"import {name}", module
                    continue
                module = f"{'.' * node.level}{node.module or ''}"
                if node.level:  # a relative import: from .module import …
                    module = importlib.util.resolve_name(module, self._package) if self._package else ""
                if getattr(sys.modules.get(module), alias.name, _MISSING) is value:
                    return _import_from(module, alias.name, name), module
        return None

    def _derived_import(self, name: str, value: Any) -> tuple[str, str] | None:
        """Return the import of a module, or of a value from the module that defines it; see `_import_statement`."""
        if isinstance(value, types.ModuleType):
            own_name = value.__name__
            if own_name == "__main__" or sys.modules.get(own_name) is not value:
                return None
            return (f"import {own_name}" if own_name == name else f"import {own_name} as {name}"), own_name
        home_module, own_name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
        if not isinstance(home_module, str) or home_module in (self._module, "__main__") or not callable(value):
            return None
        if getattr(sys.modules.get(home_module), own_name, None) is not value:
            return None
        return _import_from(home_module, own_name, name), home_module

    def _add_submodules(self, tree: ast.Module, namespace: Mapping[str, Any]) -> None:
        """Add `import a.b` for each `a.b.c` in the code, because in a trial no other module may have imported `a.b`."""
        for node in ast.walk(tree):
            attributes: list[str] = []  # of the expression `a.b.c`: b, c
            expression: ast.expr | ast.AST = node
            while isinstance(expression, ast.Attribute):
                attributes.insert(0, expression.attr)
                expression = expression.value
            if not isinstance(expression, ast.Name) or expression.id not in self._imports:
                continue
            module = namespace.get(expression.id)
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


def _names(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Return the global names that a definition uses, and those in its annotations."""
    remover = _AnnotationRemover()
    copied_tree = ast.parse(ast.unparse(tree))  # because the remover changes its tree
    text = ast.unparse(remover.visit(copied_tree))  # `symtable` reads text only

    def walk(table: symtable.SymbolTable) -> Iterator[str]:
        """Yield the global names that a scope and the scopes inside it use."""
        yield from (symbol.get_name() for symbol in table.get_symbols() if symbol.is_global() and symbol.is_referenced())
        for child in table.get_children():
            yield from walk(child)

    return set(walk(symtable.symtable(text, "submitted", "exec"))), remover.names


class _AnnotationRemover(ast.NodeTransformer):
    """Transformer that removes annotations, except those of a class's fields, and collects their names."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._in_class = False

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        """See `ast.NodeTransformer`."""
        self._collect_names(node.returns)
        node.returns = None
        return self._visit_children(node, in_class=False)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """See `ast.NodeTransformer`."""
        return self._visit_children(node, in_class=True)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        """See `ast.NodeTransformer`."""
        self._collect_names(node.annotation)
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """See `ast.NodeTransformer`."""
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
    except ValueError:  # the object returns itself as any attribute, such as `__wrapped__`
        return value
    return inner if isinstance(inner, types.FunctionType) else value


def _literal_text(value: Any) -> str | None:
    """Return a plain value as source code. None for any other value, or one that contains another value."""
    kind = type(value)
    if value is None or kind in (bool, int, str, bytes):
        return repr(value)
    if kind is float:
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if kind is dict:
        pairs = [(_literal_text(key), _literal_text(item)) for key, item in value.items()]
        inner = ", ".join(f"{key}: {item}" for key, item in pairs)
        return None if any(None in pair for pair in pairs) else f"{{{inner}}}"
    if kind in (list, tuple, set):
        items = [_literal_text(item) for item in value]
        if None in items:
            return None
        if kind is set and not items:
            return "set()"
        inner = ", ".join(str(item) for item in items)
        if kind is tuple:
            return f"({inner}{',' if items else ''})"
        return f"[{inner}]" if kind is list else f"{{{inner}}}"
    return None


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


def _import_from(module: str, own_name: str, name: str) -> str:
    """Return a statement that imports `own_name` of a module under another name, or under its own."""
    return f"from {module} import {own_name}" + ("" if own_name == name else f" as {name}")


def _location(function: types.FunctionType) -> tuple[str, int]:
    """Return file and line of a function. A notebook's cell has no file."""
    file = function.__code__.co_filename
    return (file, function.__code__.co_firstlineno) if Path(file).is_file() else ("notebook", 0)
