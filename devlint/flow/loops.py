"""Loops: what one iterates over, whether it drives device work, what it changes, and how often a node in it runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import libcst as cst

from devlint import tree
from devlint.flow import hypothesis
from devlint.flow.names import dotted, target_names
from devlint.flow.value import CLASS, FUNCTION, LOADER, MODULE, NAME, OPTIMIZER, TENSOR, THING, UNKNOWN_KIND, Value

if TYPE_CHECKING:
    from devlint.flow import Flow


@dataclass(eq=False)
class Loop:
    """One ``for`` or ``while``.

    ``over`` is what it iterates. ``loader``: it goes through a data loader. ``works``: the nodes
    that drive the device once an iteration (a model called, ``backward``, an optimizer's ``step``), its
    inner loops' included. ``rebinds``: names, and paths such as ``self.x``, that its body binds;
    ``writes``: those it writes into; ``handed``: those it gives to functions that might.
    """

    node: cst.For | cst.While
    over: Value | None
    loader: bool = False
    works: list[cst.CSTNode] = field(default_factory=list)
    rebinds: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    handed: set[str] = field(default_factory=set)

    def binds(self, path: str) -> bool:
        """Whether the body binds the path, or a name that it starts with, anew."""
        return any(part in self.rebinds for part in _beginnings(path))

    def changes(self, path: str) -> bool:
        """Whether the value that the path names may be another one in the next iteration."""
        return self.binds(path) or any(p in self.writes or p in self.handed for p in _beginnings(path))


def _beginnings(path: str) -> list[str]:
    """``a``, ``a.b`` and ``a.b.c`` of ``a.b.c``."""
    parts = path.split(".")
    return [".".join(parts[: n + 1]) for n in range(len(parts))]


def loop_of(flow: Flow, node: cst.CSTNode) -> Loop | None:
    """The innermost loop whose body holds the node, within the same function."""
    parents = flow.source.parents
    child, current = node, parents.get(node)
    while current is not None:
        if type(current) is cst.FunctionDef or type(current) is cst.Lambda or type(current) is cst.ClassDef:
            return None
        if isinstance(current, cst.For | cst.While) and child is current.body:
            return _describe(flow, current)
        if isinstance(current, cst.While) and child is current.test:
            return _describe(flow, current)
        child, current = current, parents.get(current)
    return None


def _describe(flow: Flow, node: cst.For | cst.While) -> Loop:
    known = flow.loops.get(node)
    if known is not None:
        return known
    loop = Loop(node, flow.value(node.iter) if isinstance(node, cst.For) else None)
    if isinstance(node, cst.For) and loop.over is not None:
        loop.loader = _goes_through_loader(loop.over) or _named_loader(node.iter)
    _read(flow, node, loop)
    flow.loops[node] = loop
    return loop


def _goes_through_loader(value: Value) -> bool:
    return value.kind == LOADER or (isinstance(value.ref, Value) and value.ref.kind == LOADER)


def _named_loader(node: cst.BaseExpression) -> bool:
    # enumerate(tqdm(train_loader))
    while isinstance(node, cst.Call) and node.args:
        node = node.args[0].value
    if isinstance(node, cst.Subscript):  # loaders["test"]
        node = node.value
    name = dotted(node).rpartition(".")[2]
    return bool(name) and hypothesis.LOADER_NAME.search(name) is not None


def _read(flow: Flow, node: cst.For | cst.While, loop: Loop) -> None:
    stack: list[cst.CSTNode] = [node.body]
    if type(node) is cst.For:
        target_names(node.target, loop.rebinds)
    while stack:
        current = stack.pop()
        if type(current) is cst.FunctionDef or type(current) is cst.Lambda or type(current) is cst.ClassDef:
            continue
        if (
            type(current) is cst.AssignTarget
            or type(current) is cst.AugAssign
            or type(current) is cst.AnnAssign
            or type(current) is cst.NamedExpr
        ):
            _paths(current.target, loop.rebinds)
            if type(current) is cst.AugAssign or type(current.target) is not cst.Name:
                loop.writes.add(holder(current.target))
        elif type(current) is cst.For or type(current) is cst.CompFor:
            target_names(current.target, loop.rebinds)
        elif type(current) is cst.AsName:
            target_names(current.name, loop.rebinds)
        elif type(current) is cst.Del:
            _paths(current.target, loop.rebinds)
        elif isinstance(current, cst.Call):
            if _drives(flow, current):
                loop.works.append(current)
            _read_call(flow, current, loop)
        for field_name in tree.FIELDS.get(type(current), ()):
            child = getattr(current, field_name)
            if type(child) is tuple or type(child) is list:
                stack.extend(reversed(child))
            elif isinstance(child, cst.CSTNode):
                stack.append(child)


def _paths(target: cst.BaseExpression, into: set[str]) -> None:
    if isinstance(target, cst.Tuple | cst.List):
        for item in target.elements:
            _paths(item.value, into)
        return
    if isinstance(target, cst.Subscript):
        _paths(target.value, into)  # writing an item changes the whole
        return
    name = dotted(target)
    if name:
        into.add(name)


#: Methods that change what they are called on, besides those whose name ends with an underscore.
_CHANGING = frozenset(
    "append appendleft extend insert update pop popleft clear remove discard add sort setdefault fill put "
    "resize".split()
)
#: What writes into its first argument what the processes have together.
_COLLECTIVES = frozenset(
    "all_reduce broadcast reduce all_gather_into_tensor reduce_scatter reduce_scatter_tensor all_gather "
    "all_to_all_single recv irecv".split()
)
_READING = frozenset(
    "print len isinstance enumerate zip range float int bool str repr sum max min abs list tuple type id hasattr "
    "getattr sorted reversed iter next any all round".split()
)
_LOSS_NAME = re.compile(r"loss|criterion", re.I)


def _read_call(flow: Flow, call: cst.Call, loop: Loop) -> None:
    """What a call in the body writes into, and what it may write into."""
    func, qualified = call.func, flow.name_of(call)
    plain = [path for arg in call.args if (path := dotted(arg.value))]
    loop.writes |= {dotted(arg.value) for arg in call.args if arg.keyword is not None and arg.keyword.value == "out"}
    if qualified:
        package, _, tail = qualified.rpartition(".")
        if plain and (_in_place(tail) or tail == "copyto" or (package == "torch.distributed" and tail in _COLLECTIVES)):
            loop.writes.add(plain[0])  # nn.init.normal_(w), dist.all_reduce(stop)
        return
    if type(func) is cst.Attribute:
        name = func.attr.value
        if _in_place(name) or name in _CHANGING:
            loop.writes.add(holder(func.value))
        receiver = flow.value(func.value)
        if receiver.kind in (TENSOR, THING, MODULE, OPTIMIZER):
            return
    else:
        name = func.value if type(func) is cst.Name else ""
    called = flow.value(func)
    if called.kind == MODULE or called.kind == THING or name in _READING or _LOSS_NAME.search(name):
        return
    if _names_model(name) and called.kind not in (CLASS, FUNCTION):
        return
    loop.handed.update(plain)


def _in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


def holder(node: cst.BaseExpression) -> str:
    """``a.b`` of ``a.b[0].view(-1)``: whose memory an expression shows."""
    while True:
        if type(node) is cst.Subscript:
            node = node.value
        elif type(node) is cst.Call and type(node.func) is cst.Attribute:
            node = node.func.value
        elif type(node) is cst.Attribute and node.attr.value in ("data", "grad", "T"):
            node = node.value
        else:
            return dotted(node)


def _drives(flow: Flow, call: cst.Call) -> bool:
    """``model(x)``, ``loss.backward()``, ``optimizer.step()``: the call puts the device to work."""
    func = call.func
    if type(func) is cst.Attribute:
        name = func.attr.value
        if name == "backward":
            return True
        receiver = flow.value(func.value)
        if name == "step":
            name = dotted(func.value).rpartition(".")[2]
            return receiver.kind == OPTIMIZER or hypothesis.OPTIMIZER_NAME.search(name) is not None
    value = flow.value(func)
    if value.kind == MODULE:
        return not isinstance(value.ref, str) or "Loss" not in value.ref
    if value.kind == THING and value.ref == "moved":
        return True
    if type(func) is cst.Name:
        return hypothesis.MODEL_NAME.match(func.value) is not None and value.kind not in (CLASS, FUNCTION, NAME)
    if type(func) is cst.Attribute and value.kind == UNKNOWN_KIND:
        return _names_model(func.attr.value) and not isinstance(func.value, cst.Call)
    return False


def _names_model(name: str) -> bool:
    # noise = self.transformer(latents, t)   where a pipeline was handed one
    return hypothesis.MODEL_NAME.match(name) is not None or name == "transformer"


# how often ----------------------------------------------------------------------------------------


def working_loop(flow: Flow, node: cst.CSTNode) -> Loop | None:
    """The nearest loop around a node that drives the device or goes through a loader, within the same function."""
    return next((loop for loop in loops_around(flow, node) if loop.works or loop.loader), None)


def loops_around(flow: Flow, node: cst.CSTNode) -> Iterator[Loop]:
    """The loops around a node within the same function, the innermost first."""
    loop = loop_of(flow, node)
    while loop is not None:
        yield loop
        loop = loop_of(flow, loop.node)


def runs_by_epoch(flow: Flow, loop: Loop) -> bool:
    """Whether one iteration is many steps: the loop counts epochs, or a loop inside it drives the device."""
    node = loop.node
    if type(node) is cst.For:
        names: set[str] = set()
        target_names(node.target, names)
        if any("epoch" in name.lower() for name in names):
            return True
        if not loop.loader and any(type(n) is cst.Name and "epoch" in n.value.lower() for n in tree.walk(node.iter)):
            return True
    if loop.loader:
        return False
    return any((inner := loop_of(flow, work)) is not None and inner is not loop for work in loop.works)


def runs_sometimes(flow: Flow, node: cst.CSTNode, loop: Loop) -> bool:
    """Whether a node of the loop is evaluated in some iterations only: under a test that comes out differently from
    one iteration to the next, or is about logging; on the way out of the loop; in an exception handler."""
    parents = flow.source.parents
    child, current = node, parents[node]
    while child is not loop.node:
        if isinstance(current, cst.ExceptHandler | cst.ExceptStarHandler | cst.MatchCase):
            return True
        if type(current) is cst.If or type(current) is cst.IfExp:
            if child is not current.test and not steady(current.test, loop):
                return True
        elif type(current) is cst.BooleanOperation:
            if child is current.right and not steady(current.left, loop):
                return True
        elif type(current) is cst.IndentedBlock and _skipped_or_left(current.body, child):
            return True
        child, current = current, parents[current]
    return False


#: Words of names that say when to log, save or show.
_OCCASION = re.compile(
    r"debug|verbose|log|print|profil|plot|vis|report|display|show|dump|save|interval|freq|every|should|sync_grad|last|"
    r"first|due|step|iter|count|tick|elapsed|write|monitor|sanity|dry_run|check",
    re.I,
)
_SAME_ALL_RUN = re.compile(r"^(isinstance|hasattr|callable|len|\w*main_process|\w*rank|is_\w+)$")


class Binding(Protocol):
    """Code that runs again and again: a loop, a function."""

    def binds(self, path: str) -> bool:
        """Whether it binds the path, or a name that it starts with, anew."""


def steady(test: cst.BaseExpression, loop: Binding) -> bool:
    """Whether a test comes out the same (nearly) every time that the code around it runs."""
    if type(test) is cst.Name or type(test) is cst.Attribute:
        path = dotted(test)
        return bool(path) and not loop.binds(path) and not _OCCASION.search(path.rpartition(".")[2])
    if type(test) is cst.UnaryOperation:
        return steady(test.expression, loop)
    if type(test) is cst.BooleanOperation:
        return steady(test.left, loop) and steady(test.right, loop)
    if type(test) is cst.Comparison:
        if len(test.comparisons) == 1 and type(test.comparisons[0].operator) is cst.IsNot:
            return True  # `if loss is not None`, `if writer is not None`
        return steady(test.left, loop) and all(steady(c.comparator, loop) for c in test.comparisons)
    if type(test) is cst.Call:
        name = dotted(test.func).rpartition(".")[2]
        if name in ("isinstance", "is_tensor"):
            return True
        return bool(_SAME_ALL_RUN.match(name)) and all(steady(arg.value, loop) for arg in test.args)
    if type(test) is cst.Subscript:
        return steady(test.value, loop) and all(
            type(item.slice) is cst.Index and steady(item.slice.value, loop) for item in test.slice
        )
    if type(test) is cst.Tuple or type(test) is cst.List or type(test) is cst.Set:
        return all(steady(item.value, loop) for item in test.elements)
    if type(test) is cst.SimpleString:
        return not _OCCASION.search(test.value)
    return type(test) is cst.Integer or type(test) is cst.Float


def _skipped_or_left(statements: Sequence[cst.CSTNode], here: cst.CSTNode) -> bool:
    """Whether the way to a statement of a block is guarded (``if step % 10: continue``) or leads out of the loop."""
    position = next(i for i, statement in enumerate(statements) if statement is here)
    for statement in statements[:position]:
        if type(statement) is cst.If and _ends_with(statement.body, cst.Continue) and _counts(statement.test):
            return True
    return any(leaves(statement) for statement in statements[position:])


def _counts(test: cst.BaseExpression) -> bool:
    """``step % 10``, ``not accelerator.sync_gradients``."""
    return any(
        (type(n) is cst.BinaryOperation and type(n.operator) is cst.Modulo)
        or (type(n) is cst.Name and ("sync_grad" in n.value or "should" in n.value))
        for n in tree.walk(test)
    )


def leaves(statement: cst.CSTNode) -> bool:
    """``break``, ``return``, ``raise`` or ``sys.exit()``."""
    if type(statement) is not cst.SimpleStatementLine:
        return False
    last = statement.body[-1]
    return exits(last) or type(last) in (cst.Break, cst.Return, cst.Raise)


def exits(statement: cst.CSTNode) -> bool:
    """``sys.exit()``"""
    if type(statement) is not cst.Expr or type(statement.value) is not cst.Call:
        return False
    return dotted(statement.value.func) in ("exit", "quit", "sys.exit", "os._exit")


def _ends_with(block: cst.BaseSuite, kind: type) -> bool:
    last = block.body[-1] if block.body else None
    if type(last) is cst.SimpleStatementLine:
        last = last.body[-1]
    return type(last) is kind
