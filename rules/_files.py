"""Which file code reads: what its name is bound to, and whether whoever wrote the code knows what is in it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow.names import dotted, last_word, names_bound
from devlint.flow.scope import Function
from devlint.rule import Rule
from devlint.rules._arguments import handed_in
from devlint.rules._recurs import function_of

_DOWNLOADED = re.compile(r"download|cached_file|cached_path|__file__|https?:")
_FIXED = re.compile(r"""[rfRF]*["'](/|~|[^"']*pretrained)""")
_START = re.compile(r"pretrain|(^|_)(init|initial|imagenet|backbone)(_|$)", re.IGNORECASE)
_TEMPORARY = re.compile(r"\b(TemporaryDirectory|NamedTemporaryFile|mkdtemp|mkstemp)\(")
_FETCHED = re.compile(r"download|fetch|extract|unpack|untar|copy", re.IGNORECASE)
_OF_PROCESS = re.compile(r"rank|process_index", re.IGNORECASE)


def is_published_file(rule: Rule, call: cst.Call) -> bool:
    """Whether one and the same file is meant, which is downloaded or lies in one place: others have written it."""
    bound = _bound(rule, call.args[0].value)
    return all(_is_published(rule, each) or _is_of_process(rule, each) for each in bound)


def is_file_of_this_run(rule: Rule, call: cst.Call) -> bool:
    """Whether the file is read by the process that wrote it."""
    file = call.args[0].value
    if all(_is_of_process(rule, each) for each in _bound(rule, file)):
        return True
    function = rule.flow.function(call)
    # with NamedTemporaryFile() as f: download(path, f.name)   is somebody else's
    fetched = function is not None and _FETCHED.search(rule.code(function.node)) is not None
    return not fetched and _is_temporary(rule, file)


def made(rule: Rule, node: cst.BaseExpression) -> cst.BaseExpression:
    """What a name is bound to, where the function around, or else the file, binds it once; an attribute, its class."""
    found = _stored(rule, node) if isinstance(node, cst.Attribute) else _bound(rule, node)
    return found[0] if len(found) == 1 else node


def _stored(rule: Rule, node: cst.Attribute) -> list[cst.BaseExpression]:
    """``device("cuda") if cuda.is_available() else device("cpu")`` of ``net.to(self.device)``."""
    function = rule.flow.function(node)
    if function is None or function.cls is None or dotted(node.value) != "self":
        return []
    stores = {statement for statement, _ in rule.flow.stores(function.cls, node.attr.value)}
    return [store.value for store in stores if isinstance(store, cst.Assign)] if len(stores) == 1 else []


def _is_published(rule: Rule, file: cst.BaseExpression) -> bool:
    code = rule.code(file)
    if _START.search(last_word(dotted(file))):
        return True  # torch.load(config.init_model): what training begins with
    # def load(weights): weights = cached_path(weights)   downloads an address, and takes a path as it is
    if isinstance(file, cst.Call) and dotted(file.func).rpartition(".")[2] == "cached_path" and file.args:
        function = rule.flow.function(file)
        if function is not None and dotted(file.args[0].value) in function.param_names:
            return False
    if isinstance(file, cst.BinaryOperation):
        code += rule.code(made(rule, file.left))  # folder = download_path() / "step"; torch.load(folder / "net.pt")
    if _DOWNLOADED.search(code):
        return True  # torch.load(hf_hub_download(repo, "vae.pth"))
    if isinstance(file, cst.SimpleString | cst.FormattedString) and _FIXED.match(code):
        return True  # torch.load("/home/me/net.pt"), torch.load("pretrained/s3d.pth")
    # download(url="https://data.org/net.pth"); torch.load("net.pth")
    return isinstance(file, cst.SimpleString) and _has_address(rule, str(file.evaluated_value))


def _is_of_process(rule: Rule, file: cst.BaseExpression) -> bool:
    """``f"shard_{rank}.pt"``"""
    return _OF_PROCESS.search(rule.code(file)) is not None


def _is_temporary(rule: Rule, node: cst.BaseExpression, depth: int = 5) -> bool:
    """``with TemporaryDirectory() as d: ...; for f in glob(join(d, "*.pt")): torch.load(f)``: this run wrote it."""
    if _TEMPORARY.search(rule.code(node)):
        return True
    function = rule.flow.function(node)
    read = {part.value for part in tree.walk(node) if isinstance(part, cst.Name)}
    return depth > 0 and any(
        bound & read and rule.flow.function(at) is function and _is_temporary(rule, value, depth - 1)
        for at, bound, value in _bindings(rule)
        if value is not node
    )


def _bindings(rule: Rule) -> Iterator[tuple[cst.CSTNode, set[str], cst.BaseExpression]]:
    """The names that the file binds: where, which, and to what, or to the elements of what."""
    for assign in rule.source.nodes_of(cst.Assign):
        yield assign, names_bound(*(target.target for target in assign.targets)), assign.value
    for loop in rule.source.nodes_of(cst.For):
        yield loop, names_bound(loop.target), loop.iter
    for item in rule.source.nodes_of(cst.WithItem):
        if item.asname is not None:
            yield item, names_bound(item.asname.name), item.item


def _has_address(rule: Rule, file: str) -> bool:
    name = file.rpartition("/")[2]
    texts = (str(node.evaluated_value) for node in rule.source.nodes_of(cst.SimpleString))
    return any("://" in text and text.endswith(f"/{name}") for text in texts)


def _bound(rule: Rule, node: cst.BaseExpression, depth: int = 3) -> list[cst.BaseExpression]:
    """All that a name is bound to in the function around, or by its callers, or at the top of the file; else itself."""
    if isinstance(node, cst.Call) and len(node.args) == 1 and rule.code(node.func) in ("str", "Path"):
        node = node.args[0].value
    if not isinstance(node, cst.Name) or depth == 0:
        return [node]
    here = rule.flow.function(node)
    inside = _opened(rule, node.value, here, depth)
    outside: list[cst.BaseExpression] = []
    for assign in rule.source.nodes_of(cst.Assign):
        if any(isinstance(t.target, cst.Name) and t.target.value == node.value for t in assign.targets):
            place = rule.flow.function(assign)
            if place is here:
                inside.append(assign.value)
            elif place is None:
                outside.append(assign.value)
    if not inside and here is not None:
        inside = _handed_in(rule, node.value, here, depth)
    return inside or outside or [node]


def _opened(rule: Rule, name: str, function: Function | None, depth: int) -> list[cst.BaseExpression]:
    """``path`` of ``with open(path) as file``, or what that is bound to."""
    return [
        bound
        for item in rule.source.nodes_of(cst.WithItem)
        if item.asname is not None
        and dotted(item.asname.name) == name
        and rule.flow.function(item) is function
        and isinstance(item.item, cst.Call)
        and item.item.args
        and dotted(item.item.func) == "open"
        for bound in _bound(rule, item.item.args[0].value, depth - 1)
    ]


def _handed_in(rule: Rule, name: str, function: Function, depth: int) -> list[cst.BaseExpression]:
    """What the calls in the file hand in for a parameter."""
    given: list[cst.BaseExpression] = []
    if all(param.name.value != name for param in function.positional):
        return given
    for call in rule.source.nodes_of(cst.Call):
        if dotted(call.func).rpartition(".")[2] == function.name and function_of(rule.flow, call) is function:
            handed = handed_in(call, function, name)
            if handed is not None:
                given += _bound(rule, handed, depth - 1)
    return given
