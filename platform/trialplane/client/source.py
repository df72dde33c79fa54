"""The source of a function with the imports, constants, functions and classes that it uses, as one module.

Works for scripts, for imported modules and for the cells of a notebook. The text is what was written; of what surrounds it
only what is used comes along. Annotations are not evaluated in the new module, so they need nothing.
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

_LONGEST = 64 * 1024  # characters of a constant; larger ones are data
_OF_NOTEBOOKS = ("get_ipython", "display")  # names that IPython adds to Python's own
_OF_MODULES = {*vars(types.ModuleType("")), "__builtins__", "__file__"}
_NOT_FOUND = "import importlib.util as u, sys; print(*(n for n in sys.argv[1:] if u.find_spec(n) is None))"


def module_of(function: types.FunctionType) -> str:
    """Return the text of a module with a function and everything that it uses of its own module.

    Raises:
        SpecError: something that it uses cannot be written as source; holds every reason, with its fix.
    """
    module_source = _Source(function)
    module_source.define(function, function.__name__, function.__name__)
    module_source.check_installed()
    if module_source.issues:
        raise SpecError(list(dict.fromkeys(module_source.issues)))
    return module_source.text()


class _Source:
    """Module written for a function, and the reasons why parts of it cannot be written.

    Args:
        function: the one that is submitted; what else is defined in its module travels along.
    """

    def __init__(self, function: types.FunctionType) -> None:
        self.issues: list[Issue] = []
        self._module = function.__module__
        self._package = str(function.__globals__.get("__package__") or "")
        self._bound: dict[str, Any] = {}  # name in the new module → its value in the old one
        self._submodules: dict[str, None] = {}
        self._imports: dict[str, str] = {}
        self._constants: dict[str, str] = {}
        self._definitions: dict[str, str] = {}
        self._libraries: dict[str, Issue] = {}  # top-level module → the complaint if it is not installed
        self._where = _location(function)
        self._cells = _cells() if self._module == "__main__" else []
        texts = self._cells or ["".join(linecache.getlines(function.__code__.co_filename))]
        self._statements = [statement for text in texts for statement in _imports(text)]

    def text(self) -> str:
        """The module."""
        doc = '"""What was submitted: a function with all that it uses of its module."""'
        parts = [doc, "", "from __future__ import annotations", "", *(f"import {name}" for name in self._submodules)]
        parts += [*self._imports.values(), "", *self._constants.values()]
        return "\n".join([*parts, *(f"\n\n{text.rstrip()}" for text in self._definitions.values())]) + "\n"

    def define(self, value: Any, name: str, user: str) -> None:
        """Add a function or class of the module, after all that it uses.

        Args:
            value: the function or class, as it was written; without what decorators made of it.
            name: by which it is used.
            user: name of the definition that uses it.
        """
        self._bound[name] = value
        own_name = value.__name__
        if own_name != name:
            if self._bound.get(own_name, value) is not value:
                self._refuse_conflict(user, own_name)
            elif own_name not in self._bound:
                self.define(value, own_name, user)
            self._definitions[name] = f"{name} = {own_name}"
            return
        try:
            text = self._source_of(value)
            tree = ast.parse(text)
        except (OSError, TypeError, SyntaxError):
            where = "in a file, or in a notebook's cell that does not begin with %%"
            self._refuse(user, f"the source of {name} cannot be found; define it {where}")
            return
        if len(tree.body) != 1 or getattr(tree.body[0], "name", None) != own_name:
            self._refuse(user, f"the source of {name} cannot be told from what surrounds it; define it with def on its own")
            return
        namespace = _namespace(value)
        used, noted = _names(tree)
        for used_name in sorted(used - {own_name}):
            self._need(used_name, namespace, own_name)
        for used_name in sorted(noted - used):  # annotations are not evaluated, but a library may read them
            if used_name in namespace and used_name not in self._bound:
                self._import(used_name, namespace[used_name])
        self._import_submodules(tree, namespace)
        self._definitions[own_name] = text

    def _need(self, name: str, namespace: Mapping[str, Any], user: str) -> None:
        """Add the value of a global name."""
        value = namespace.get(name, getattr(builtins, name, None))
        plain = _unwrapped(value)
        home = getattr(plain, "__module__", None)
        if name in _OF_NOTEBOOKS and (name not in namespace or str(home).startswith(("IPython", "ipykernel"))):
            self._refuse(user, f"uses {name} (or a % or ! command), which only a notebook has; leave it out")
        elif name in _OF_MODULES or (name not in namespace and hasattr(builtins, name)):
            return
        elif name not in namespace:
            self._refuse(user, f"uses {name}, which is not defined; define it first, or make it an argument")
        elif name in self._bound:
            if self._bound[name] is not plain:
                self._refuse_conflict(user, name)
        elif (text := _literal(value)) is not None and len(text) <= _LONGEST:
            self._bound[name] = value
            self._constants[name] = f"{name} = {text}"
        elif self._import(name, value):
            return
        elif home == self._module and isinstance(plain, (types.FunctionType, type)):
            self._add_definition(plain, name, user)
        elif text is not None:
            advice = "save it to a file, and pass the path in params"
            self._refuse(user, f"uses {name}, which is {len(text):,} characters of data; {advice}")
        else:
            kind = type(value).__name__
            article = "an" if kind[:1].lower() in "aeiou" else "a"
            advice = f"make it inside {user}, or pass plain values through params"
            self._refuse(user, f"uses {name}, {article} {kind}, which cannot be written as source; {advice}")

    def _add_definition(self, plain: Any, name: str, user: str) -> None:
        if plain.__name__ == "<lambda>":
            self._refuse(user, f"uses {name}, a lambda, which has no source of its own; write it as def {name}(…)")
        elif "." in plain.__qualname__.rpartition("<locals>.")[2] or (isinstance(plain, type) and "<" in plain.__qualname__):
            self._refuse(user, f"uses {name}, which is defined inside of another class or function; move it out")
        else:
            self.define(plain, name, user)

    def _import(self, name: str, value: Any) -> bool:
        """Add the import by which a name has its value; return whether there is one."""
        if name in self._imports:
            return True
        statement_and_module = self._statement(name, value)
        if statement_and_module is None:
            return False
        self._imports[name], module = statement_and_module
        self._bound.setdefault(name, _unwrapped(value))
        library = module.partition(".")[0]
        if library not in sys.stdlib_module_names:
            advice = "install it as a package, or submit a job's folder that holds it"
            complaint = f"uses {name} of {library}, a module beside your code, which does not travel with it; {advice}"
            self._libraries.setdefault(library, Issue((name,), complaint, *self._where))
        return True

    def _statement(self, name: str, value: Any) -> tuple[str, str] | None:
        """The statement that imports a value under a name, and the module in it: as written in the code, or made."""
        for node in self._statements:
            for alias in node.names:
                if (alias.asname or alias.name.partition(".")[0]) != name:
                    continue
                if isinstance(node, ast.Import):
                    module = alias.name if alias.asname else name
                    if sys.modules.get(module, self) is value:
                        return f"import {alias.name} as {name}" if alias.asname else f"import {name}", module
                    continue
                module = f"{'.' * node.level}{node.module or ''}"
                if node.level:
                    module = importlib.util.resolve_name(module, self._package) if self._package else ""
                if getattr(sys.modules.get(module), alias.name, self) is value:
                    return _from(module, alias.name, name), module
        if isinstance(value, types.ModuleType):
            own_name = value.__name__
            if own_name == "__main__" or sys.modules.get(own_name) is not value:
                return None
            return (f"import {own_name}" if own_name == name else f"import {own_name} as {name}"), own_name
        home_module, own_name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
        if not isinstance(home_module, str) or home_module in (self._module, "__main__") or not callable(value):
            return None
        return (
            (_from(home_module, own_name, name), home_module)
            if getattr(sys.modules.get(home_module), own_name, None) is value
            else None
        )

    def _import_submodules(self, tree: ast.Module, namespace: Mapping[str, Any]) -> None:
        """Add `import a.b` for each `a.b.c` in the code: something else may have imported it here, and not in a trial."""
        for node in ast.walk(tree):
            steps: list[str] = []
            expression: ast.expr | ast.AST = node
            while isinstance(expression, ast.Attribute):
                steps.insert(0, expression.attr)
                expression = expression.value
            if not isinstance(expression, ast.Name) or expression.id not in self._imports:
                continue
            module = namespace.get(expression.id)
            for step in steps:
                if not isinstance(module, types.ModuleType) or f"{module.__name__}.{step}" not in sys.modules:
                    break
                self._submodules[f"{module.__name__}.{step}"] = None
                module = getattr(module, step, None)

    def check_installed(self) -> None:
        """Add an issue for each module that a trial would not find, as it lies beside the code."""
        if not self._libraries:
            return
        # Asked of an interpreter without the folder of the script and the working directory, as a trial's is.
        command = [sys.executable, "-P", "-c", _NOT_FOUND, *self._libraries]
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
        self.issues += [self._libraries[name] for name in done.stdout.split() if name in self._libraries]

    def _source_of(self, value: Any) -> str:
        """Raise OSError, or TypeError, if there is none."""
        try:
            return textwrap.dedent(inspect.getsource(value))
        except (OSError, TypeError):
            for text in self._cells:  # a class of a notebook, whose cell Python does not know
                for node in _parsed(text).body:
                    if isinstance(node, ast.ClassDef) and node.name == value.__name__:
                        return ast.unparse(node)
            raise

    def _refuse_conflict(self, user: str, name: str) -> None:
        self._refuse(user, f"uses another {name} than what it calls does; rename one of them")

    def _refuse(self, user: str, reason: str) -> None:
        self.issues.append(Issue((user,), reason, *self._where))


def _names(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Return the global names that a definition uses, and those in its annotations."""
    bare = _Unannotated()
    text = ast.unparse(bare.visit(ast.parse(ast.unparse(tree))))

    def walk(table: symtable.SymbolTable) -> Iterator[str]:
        yield from (symbol.get_name() for symbol in table.get_symbols() if symbol.is_global() and symbol.is_referenced())
        for child in table.get_children():
            yield from walk(child)

    return set(walk(symtable.symtable(text, "submitted", "exec"))), bare.names


class _Unannotated(ast.NodeTransformer):
    """Transformer that removes annotations, except those of a class's fields, and collects their names."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._in_class = False

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        """See `ast.NodeTransformer`."""
        self._note(node.returns)
        node.returns = None
        return self._visit_children(node, in_class=False)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """See `ast.NodeTransformer`."""
        return self._visit_children(node, in_class=True)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        """See `ast.NodeTransformer`."""
        self._note(node.annotation)
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """See `ast.NodeTransformer`."""
        if not self._in_class:
            self._note(node.annotation)
            node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def _visit_children(self, node: ast.AST, *, in_class: bool) -> ast.AST:
        before, self._in_class = self._in_class, in_class
        self.generic_visit(node)
        self._in_class = before
        return node

    def _note(self, annotation: ast.expr | None) -> None:
        if annotation is not None:
            self.names |= {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}


def _namespace(value: Any) -> Mapping[str, Any]:
    """Return the names that a function or class can use: its module's, and those of its closure."""
    if isinstance(value, type):
        return vars(sys.modules[value.__module__])
    closed = {}
    for name, held in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        try:
            closed[name] = held.cell_contents
        except ValueError:  # empty: it is defined further down
            continue
    return {**value.__globals__, **closed}


def _unwrapped(value: Any) -> Any:
    """Return a decorated function without its decorators, and anything else unchanged."""
    try:
        plain = inspect.unwrap(value) if callable(value) and not isinstance(value, type) else value
    except ValueError:  # an object that has any attribute, `__wrapped__` among them
        return value
    return plain if isinstance(plain, types.FunctionType) else value


def _literal(value: Any) -> str | None:
    """Return a plain value as source. None for any other value."""
    kind = type(value)
    if value is None or kind in (bool, int, str, bytes):
        return repr(value)
    if kind is float:
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if kind is dict:
        pairs = [(_literal(key), _literal(item)) for key, item in value.items()]
        inner = ", ".join(f"{key}: {item}" for key, item in pairs)
        return None if any(None in pair for pair in pairs) else f"{{{inner}}}"
    if kind in (list, tuple, set):
        items = [_literal(item) for item in value]
        if None in items or (kind is set and not items):
            return None if None in items else "set()"
        inner = ", ".join(str(item) for item in items)
        if kind is tuple:
            return f"({inner}{',' if items else ''})"
        return f"[{inner}]" if kind is list else f"{{{inner}}}"
    return None


def _imports(text: str) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in ast.walk(_parsed(text)) if isinstance(node, (ast.Import, ast.ImportFrom))]


def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):  # of a cell that did not run, or no source at all
        return ast.Module([], [])


def _cells() -> list[str]:
    """Return the executed cells of a notebook, newest first. Empty outside of one."""
    return [str(text) for text in reversed(vars(sys.modules["__main__"]).get("In", [])) if text]


def _from(module: str, original: str, name: str) -> str:
    return f"from {module} import {original}" + ("" if original == name else f" as {name}")


def _location(function: types.FunctionType) -> tuple[str, int]:
    """Return file and line of a function. A notebook's cell has no file."""
    file = function.__code__.co_filename
    return (file, function.__code__.co_firstlineno) if Path(file).is_file() else ("notebook", 0)
