"""Whether anything runs a piece of code, as far as the text of its project tells.

A copy of a method that nobody calls, a class that nobody builds: what a finding says of them may be right, and nobody
would mind. Such findings are tentative.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import libcst as cst

from devlint.flow.loops import leaves
from devlint.flow.names import imported_from, last_word
from devlint.flow.outside import PLAIN_BASES
from devlint.flow.scope import decorators
from devlint.mentions import named_at, says
from devlint.source import Definition, Source
from devlint.testcode import is_test_file

if TYPE_CHECKING:
    from devlint.flow import Flow
    from devlint.index import View

#: Decorators that call nothing and register nothing.
_PLAIN = frozenset(
    {"abstractmethod", "cached_property", "classmethod", "compile", "dataclass", "inference_mode", "lru_cache"}
    | {"no_grad", "enable_grad", "property", "script", "setter", "staticmethod", "torch_compile"}
)
#: Methods that torch, Python or a framework's loop calls by name.
_CALLED_BY_NAME = frozenset(
    {"forward", "backward", "extra_repr", "reset_parameters", "step", "setup_context", "symbolic", "jvp", "vmap"}
    | {"state_dict", "load_state_dict", "get_extra_state", "set_extra_state", "train", "eval", "to", "cuda", "cpu"}
    | {"_apply", "_load_from_state_dict", "_save_to_state_dict", "_forward_unimplemented", "collate_fn", "main"}
)
#: Bases that call no other methods of what descends from them.
_CALL_NO_MORE = frozenset(
    {"object", "torch.nn.Module", "torch.autograd.Function", "torch.optim.Optimizer", "torch.utils.data.Dataset"}
)
#: Functions that try something out.
_TRIAL = re.compile(r"_*test(_|$)")
#: Folders, and files, of what nobody works on any more.
_RETIRED = re.compile(r"(^|[\W_])(retired|obsolete|unmaintained|deprecated|archived?|attic)([\W_]|$)|^_?old$")
_OLD = re.compile(r"[-_. ](old|deprecated|obsolete|backup|bak|copy)\.py$")
#: Makes commands of all functions of a file.
_COMMANDS_OF_ALL = "fire.Fire("


def is_unused(flow: Flow, node: cst.CSTNode) -> bool:
    """Whether nothing in the project names the function or class at the top level that holds ``node``, or its method.

    Only of files that are there to be imported: a script is run by its path, and what stands alone may be on its way
    to somewhere. What a function defines and does not name is unused in any file, and so is what a package among
    the tests keeps as the project had it once.
    """
    view = flow.project
    if view is None:
        return False
    if _is_retired(view) or _asks_for_what_is_gone(flow, view):
        return True
    definitions = [*flow.source.definitions(node)][::-1]  # the outermost first
    if not definitions:
        return False
    if view.is_in_package() and _is_kept_by_tests(view, definitions[0].name.value):
        return True
    if is_test_file(view.in_project()):
        return False
    if any(_is_left_over(flow, outer, inner) for outer, inner in pairwise(definitions)):
        return True
    if not _is_module(flow, view):
        return False
    if _cannot_be_imported(flow, view):
        return True
    if _COMMANDS_OF_ALL in flow.source.text:
        return False
    top = definitions[0]
    if not _is_named(flow, view, top, {top}):
        return True
    if len(definitions) < 2 or not isinstance(top, cst.ClassDef):
        return False
    method = definitions[1]
    return isinstance(method, cst.FunctionDef) and _is_unused_method(flow, view, top, method)


def _is_module(flow: Flow, view: View) -> bool:
    """Whether a file is there to be imported: it is in a package, imports from beside itself, as no script can, does
    nothing that a script would, or others import it."""
    if view.is_in_package():
        return True
    relative = any(statement.relative for statement in flow.source.nodes_of(cst.ImportFrom))
    return relative or _only_defines(flow, view) or view.some_file_says(f"imports {view.module()}") is True


def _only_defines(flow: Flow, view: View) -> bool:
    """Whether a file would do nothing if it were run, in a project that has files to be run.

    In the root it may be what its project offers to others.
    """
    return not may_be_run(flow, view) and view.some_file_says("script") is True


def may_be_run(flow: Flow, view: View) -> bool:
    """Whether a file does something when it is run, or lies in the root, for whoever uses the project."""
    inside = view.in_project()
    return os.path.dirname(inside) == "" or says(flow.source.raw, inside, "runs")


def _is_left_over(flow: Flow, outer: Definition, inner: Definition) -> bool:
    """Whether a function defines something for itself that it never names: `def warp(x): def grid(): ...; return x`."""
    if not isinstance(outer, cst.FunctionDef) or _is_marked(inner):
        return False
    source = flow.source
    first, last = source.offsets(outer)
    start, end = source.offsets(inner)
    parts = source.text[first:start], source.text[end:last]
    return not any(True for part in parts for _ in named_at(part, inner.name.value))


def _is_kept_by_tests(view: View, name: str) -> bool:
    """Whether a package among the tests has what the file of that name in the project itself defines, too."""
    is_test = is_test_file(view.in_project())
    return is_test and view.some_file_says(f"defines {os.path.basename(view.path)} {name}") is True


def _cannot_be_imported(flow: Flow, view: View) -> bool:
    """Whether the file needs several others of its own package that are not there: what is left of an older state.

    One may be made when the package is built (`from .version import version`), and private ones are often compiled.
    """
    missing = 0
    for line in flow.source.module.body:
        for statement in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(statement, cst.ImportFrom):
                package = imported_from(statement)
                missing += not last_word(package).startswith("_") and view.lacks(package)
    return missing > 1


def _is_retired(view: View) -> bool:
    """Whether a file of the project lies with what nobody works on any more: `_deprecated/net.py`, `net_old.py`."""
    inside = view.in_project()
    if os.path.isabs(inside):
        return False  # what the project's own folders are called is not known
    *folders, name = inside.lower().split(os.sep)
    return _OLD.search(name) is not None or any(_RETIRED.search(folder) for folder in folders)


def _asks_for_what_is_gone(flow: Flow, view: View) -> bool:
    """Whether the file imports a name, first of all, that a file of the project does not give: it cannot be run."""
    # from net.loaders import Loader   where net/loaders.py defines another one by now
    return any(
        isinstance(statement, cst.ImportFrom)
        and not isinstance(statement.names, cst.ImportStar)
        and any(view.has_no(imported_from(statement), alias.evaluated_name) for alias in statement.names)
        for line in _needed_lines(flow.source.module.body)
        for statement in line.body
    )


def _needed_lines(body: Iterable[cst.CSTNode]) -> Iterator[cst.SimpleStatementLine]:
    """The lines of a file that must not fail."""
    for line in body:
        if isinstance(line, cst.SimpleStatementLine):
            yield line
        # try: from apex import amp
        # except ImportError: raise ImportError("install apex")
        elif isinstance(line, cst.Try) and line.handlers and all(leaves(h.body.body[-1]) for h in line.handlers):
            yield from _needed_lines(line.body.body)


def _is_named(flow: Flow, view: View, top: Definition, asked: set[Definition]) -> bool:
    """Whether a definition is named in main code of its file, in another file, or in a definition of which that holds.

    ``asked``: definitions that do not count as naming it.
    """
    if _is_marked(top):
        return True
    name, source = top.name.value, flow.source
    for holder in _naming(source, name):
        if not isinstance(holder, Definition):
            return True
        if holder not in asked:
            asked.add(holder)
            if _is_named(flow, view, holder, asked):
                return True
    if _tries_out(top):
        return False
    return view.some_file_runs(f"{view.module()} {name}") is not False


def _naming(source: Source, name: str) -> Iterator[cst.CSTNode | None]:
    """The statements of the top level that name a definition, where that is no description: those that do so in code
    first, which are quicker to find than where anything stands; of strings and attributes, definitions alone."""
    names = [node for node in source.nodes_of(cst.Name) if node.value == name and not _is_defined(source, node)]
    yield from (_at_top(source, node) for node in names)
    offsets = list(named_at(source.text, name))
    if len(offsets) == len(names):
        return
    inside = {each: source.offsets(each) for each in source.module.body if isinstance(each, Definition)}
    described = [source.offsets(each) for each in source.nodes_of(cst.Expr) if isinstance(each.value, cst.SimpleString)]
    for offset in offsets:
        # class Flipped: """Causal, the other way round."""
        if not any(start <= offset < end for start, end in described):
            yield next((each for each, (start, end) in inside.items() if start <= offset < end), None)


def _is_defined(source: Source, node: cst.Name) -> bool:
    above = source.parents[node]
    return isinstance(above, Definition) and above.name is node


def _at_top(source: Source, node: cst.CSTNode) -> cst.CSTNode:
    """The statement of the top level that holds a node."""
    while not isinstance(above := source.parents[node], cst.Module):
        node = above
    return node


def _tries_out(definition: Definition) -> bool:
    """``def test(): ...`` beside what it tries out: nothing collects it, and who wrote it runs it by hand.

    ``def test(net, loader): ...`` evaluates something, and is called by others.
    """
    return (
        isinstance(definition, cst.FunctionDef)
        and _TRIAL.match(definition.name.value) is not None
        and not definition.params.params
    )


def _is_unused_method(flow: Flow, view: View, cls: cst.ClassDef, method: cst.FunctionDef) -> bool:
    name = method.name.value
    if _is_marked(method) or name in _CALLED_BY_NAME or (name.startswith("__") and name.endswith("__")):
        return False
    # class Net(Base): def __old(self): ...   has another name in the code of `Base`
    is_private = name.startswith("__")
    if not is_private and any(_calls_others(base) for base in _outside_bases(flow, view, cls)):
        return False
    return view.some_file_says(f"uses {name}") is False


def _calls_others(base: str) -> bool:
    return base not in _CALL_NO_MORE and last_word(base) not in PLAIN_BASES


def _outside_bases(flow: Flow, view: View, node: cst.ClassDef) -> set[str]:
    """The classes of other packages that a class descends from."""
    found: set[str] = set()
    for cls in flow.scope.classes[node].lineage:
        found.update(set(cls.bases) - set(cls.project_bases) - {base.name for base in cls.local_bases})
        for base in cls.project_bases:
            found |= view.ancestry(base).outside
    return found


def _is_marked(definition: Definition) -> bool:
    """Whether a decorator may register it, or make a command of it."""
    return any(last_word(name) not in _PLAIN for name in decorators(definition))
