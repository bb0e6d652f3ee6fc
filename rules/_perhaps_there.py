"""Tensors that numpy reads, and that nothing brings to the host, where code allows for devices.

Nothing shows where such a tensor is. But somebody cut it off from its graph, so that it comes from a model; or it is
what a model gave; or callers hand in what is on a device: and the file names devices.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.arrays import NEED_ARRAYS
from devlint.flow.facts import ArrayUse
from devlint.flow.hypothesis import MODEL_NAME, asks_for_device, names_device
from devlint.flow.names import called_name, dotted, is_tensor_annotation, last_word, names_bound
from devlint.flow.place import SOMEWHERE
from devlint.flow.scope import Function
from devlint.flow.steps import function_called
from devlint.flow.value import ARRAY, DATA, LIST, LOADER, MODULE, TENSOR, THING, Value
from devlint.rule import Rule
from devlint.rules._arguments import handed_in
from devlint.rules._as_arrays import read_as_arrays
from devlint.rules._brought_elsewhere import brought_elsewhere
from devlint.rules._portability import leaves
from devlint.rules._recurs import calls_of
from devlint.rules._switches import tests_above
from devlint.rules._training import is_inside

#: What puts a thing on the host, or makes numbers of it.
_TO_HOST = re.compile(r"\.cpu\(|[\"']cpu\b|\.tolist\(|\.numpy\(|\.item\(")
_ADD = frozenset({"append", "extend", "insert"})
_READS = frozenset({"cpu", "tolist", "numpy", "item"})
#: Data sets keep their images so: ``train_set.data.numpy()``.
_DATA_SET = re.compile(r"data_?set|(^|_)(ds|set|train|test|mnist|cifar\d*|loader)$", re.I)
_GIVES = frozenset({"generate", "forward", "decode"})
_GO_THROUGH = frozenset({"zip", "enumerate", "list", "tuple", "sorted", "reversed", "tqdm"})


class Read(NamedTuple):
    """A tensor that numpy reads, what was kept of it for that, and why it may be on a device."""

    use: ArrayUse
    kept: cst.BaseExpression | None
    why: str


class _Binding(NamedTuple):
    """A statement that gives a name a value; ``adds``: it may keep what it held: ``found.append(x)``."""

    statement: cst.CSTNode
    value: cst.BaseExpression
    adds: bool


class _Sources:
    """What a value is made of, in one function."""

    def __init__(self, rule: Rule, function: Function) -> None:
        self.rule, self.function = rule, function
        self.bound: dict[str, list[_Binding]] = {}
        for node in tree.walk(function.node.body):
            self._bind(node)

    def _bind(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Assign):
            for target in node.targets:
                self._add(target.target, node.value, node)
        elif isinstance(node, cst.AnnAssign | cst.AugAssign) and node.value is not None:
            self._add(node.target, node.value, node, adds=isinstance(node, cst.AugAssign))
        elif isinstance(node, cst.For | cst.CompFor):
            self._add(node.target, node.iter, node)
        elif isinstance(node, cst.NamedExpr):
            self._add(node.target, node.value, node)
        elif isinstance(node, cst.Call) and (added := _added(node)) is not None:
            self._add(*added, node, adds=True)

    def _add(
        self, target: cst.BaseExpression, value: cst.BaseExpression, node: cst.CSTNode, *, adds: bool = False
    ) -> None:
        if isinstance(target, cst.Subscript):
            target, adds = target.value, True  # found[key] = model(x)
        for name in names_bound(target) or {dotted(target)}:
            self.bound.setdefault(name, []).append(_Binding(node, value, adds))

    def _before(self, name: str, use: cst.CSTNode) -> list[cst.BaseExpression]:
        """What a name may hold where it is used: not what is assigned further down, nor what is surely overwritten."""
        source = self.rule.source
        found: list[cst.BaseExpression] = []
        for each in reversed(self.bound[name]):
            if isinstance(each.statement, cst.CompFor):
                found.append(each.value)
                continue
            if not source.comes_before(each.statement, use) or is_inside(self.rule.flow, use, each.value):
                continue
            found.append(each.value)
            if not each.adds and self._is_always_run(each.statement, use):
                break
        return found

    def _is_always_run(self, statement: cst.CSTNode, use: cst.CSTNode) -> bool:
        """Whether a statement stands in a block around the use, or is a loop around it."""
        parents = self.rule.source.parents
        block = parents.get(statement)
        while isinstance(block, cst.SimpleStatementLine | cst.Expr):
            block = parents.get(block)
        above: cst.CSTNode | None = use
        while above is not None and not isinstance(above, cst.FunctionDef):
            if above is block or above is statement:
                return True
            above = parents.get(above)
        return False

    def of(self, node: cst.BaseExpression) -> set[str] | None:
        """The kinds of what a value is made of; ``None`` where something brings any of it to the host."""
        found: set[str] = set()
        seen: set[cst.BaseExpression] = set()
        todo = [node]
        while todo:
            each = todo.pop()
            if each in seen:
                continue
            seen.add(each)
            value = self.rule.flow.value(each)
            if value.kind in (DATA, ARRAY) or (value.place.is_host and value.kind in (TENSOR, THING)):
                return None
            if value.kind in (TENSOR, THING) and value.place.is_there and not isinstance(value.origin, cst.Param):
                found.add("there")
                continue
            if isinstance(each, cst.Call):
                more = self._of_call(each, found)
                if more is None:
                    return None
                todo += more
            elif isinstance(each, cst.Subscript | cst.UnaryOperation | cst.Await):
                todo.append(each.value if isinstance(each, cst.Subscript) else each.expression)
            elif isinstance(each, cst.BinaryOperation):
                todo += self._tensors([each.left, each.right])
            elif isinstance(each, cst.Comparison):
                todo.append(each.left)
            elif isinstance(each, cst.IfExp):
                todo += [each.body, each.orelse]
            elif isinstance(each, cst.List | cst.Tuple):
                todo += [item.value for item in each.elements]
            elif isinstance(each, cst.ListComp | cst.GeneratorExp):
                todo.append(each.elt)
            elif isinstance(each, cst.Name | cst.Attribute):
                todo += self._of_name(each, found)
        return found

    def kept(self, operand: cst.BaseExpression) -> cst.BaseExpression | None:
        """The one thing that is put into a list: ``labels.append(y)`` of ``np.concatenate(labels)``."""
        if self.rule.flow.value(operand).kind != LIST:
            return None
        put = [each.value for each in self.bound.get(dotted(operand), ()) if each.adds]
        return put[0] if len(put) == 1 else None

    def _of_call(self, call: cst.Call, found: set[str]) -> list[cst.BaseExpression] | None:
        flow, func = self.rule.flow, call.func
        name, word = flow.scope.qualified(func) or "", called_name(call)
        args = [arg.value for arg in call.args if arg.keyword is None]
        if name.startswith("torch."):
            found.add("torch")
            return self._tensors(args)
        if name.partition(".")[0] in ("numpy", "scipy", "sklearn", "pandas"):
            return None
        if isinstance(func, cst.Name) and word in _GO_THROUGH:
            return args
        if self._is_model(call):
            if any(flow.value(arg.value).is_tensor and flow.value(arg.value).place.is_host for arg in call.args):
                return None  # whoever calls it so has left the model on the host
            if self._holds_nothing(call):
                return self._tensors(args)  # nn.CosineSimilarity()(a, b)   is where they are
            if self._is_put_on_host(dotted(func).removesuffix(f".{word}") if word in _GIVES else dotted(func)):
                return None
            found.add("own model" if dotted(func).startswith("self.") else "model")
            return []
        own = function_called(flow, self.function, call)
        if own is not None and own.home is flow:  # of what another file defines, the code is not kept
            if _TO_HOST.search(self.rule.code(own.node.body)):
                return None
            found.add("own there" if _names_devices(self.rule, own) else "own")
            return args if not own.takes_self else []
        if isinstance(func, cst.Attribute):
            if word in _READS or (word == "to" and _TO_HOST.search(self.rule.code(call))):
                return None
            if word not in table.METHODS:
                found.add("object")  # book.rows_of(part)
            return [func.value]
        if any(flow.value(each).is_tensor and flow.value(each).place.is_host for each in args):
            return None  # rows, values = coalesce(rows.cpu(), values)
        found.add("unknown")
        return []

    def _is_model(self, call: cst.Call) -> bool:
        func = call.func
        if self.rule.flow.value(func).kind == MODULE:
            return True
        path = dotted(func)
        if called_name(call) in _GIVES and isinstance(func, cst.Attribute):
            path = dotted(func.value)
        return MODEL_NAME.search(last_word(path)) is not None if path else False

    def _tensors(self, nodes: list[cst.BaseExpression]) -> list[cst.BaseExpression]:
        """Without the numbers: ``x ** 2``, ``torch.split(x, [4, 4])``."""
        return [each for each in nodes if self.rule.flow.value(each).kind not in (DATA, ARRAY)]

    def _holds_nothing(self, call: cst.Call) -> bool:
        ref = self.rule.flow.value(call.func).ref
        fact = table.MODULES.get(ref) if isinstance(ref, str) else None
        return fact is not None and fact.tensors not in ("always", "default")

    def _is_put_on_host(self, path: str) -> bool:
        """``model.cpu()``, ``net = Net().to("cpu")``"""
        if not path:
            return False
        # self.module.decoder(x) after self.module.cpu()
        heads = [path]
        while "." in heads[-1]:
            heads.append(heads[-1].rpartition(".")[0])
        code = self.rule.source.text if path.startswith("self.") else self.rule.code(self.function.node.body)
        return any(
            re.search(rf"\b{re.escape(head)}\s*(=.*)?\.(cpu\(|to\(.*[\"']cpu)", code)
            for head in heads
            if head != "self"
        )

    def _of_name(self, node: cst.Name | cst.Attribute, found: set[str]) -> list[cst.BaseExpression]:
        path = dotted(node)
        if path in self.bound:
            before = self._before(path, node)
            if before:
                return before
        if self.rule.flow.value(node).kind == LOADER:
            found.add("batch")
        elif isinstance(node, cst.Attribute):
            if isinstance(node.value, cst.Name) and node.value.value == "self":
                found.add("own there" if self._is_moved_by_another(node.attr.value) else "attribute")
            else:
                return [node.value]  # x.grad, out.logits
        elif path == "self":
            found.add("attribute")
        elif path in self.function.param_names:
            found.add(f"param {path}")
        else:
            found.add("unknown")
        return []

    def _is_moved_by_another(self, attr: str) -> bool:
        """``self.rates = self.rates.to(x.device)``, in any method of the class."""
        cls, flow = self.function.cls, self.rule.flow
        values = (
            [getattr(statement, "value", None) for statement, _ in flow.stores(cls, attr)] if cls is not None else []
        )
        moves = [flow.move(value) for value in values if value is not None]
        return any(move is not None and not move.target.is_host for move in moves)


def _added(call: cst.Call) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """A list, and what a call puts into it."""
    if isinstance(call.func, cst.Attribute) and call.func.attr.value in _ADD and call.args:
        return call.func.value, call.args[-1].value
    return None


def perhaps_there(rule: Rule) -> Iterator[Read]:
    """Reads of tensors that nothing brings to the host."""
    if rule.in_tests or "numpy" not in rule.source.text or "tensorflow" in rule.flow.scope.packages:
        return  # a tensor of TensorFlow comes to the host by itself
    known = set()
    for read in _unbrought(rule) if _allows_for_devices(rule) or _is_of_library(rule) else ():
        known.add(read.use.node)
        yield read
    for call, operand, why in brought_elsewhere(rule):
        if call not in known and not _is_told_apart(rule, call, operand):
            known.add(call)
            yield Read(_use(rule, call, operand), None, why)


def _unbrought(rule: Rule) -> Iterator[Read]:
    sources: dict[Function, _Sources] = {}
    for call, operand in _read_tensors(rule):
        function = rule.flow.function(call)
        if function is None or _is_told_apart(rule, call, operand):
            continue
        if function not in sources:
            sources[function] = _Sources(rule, function)
        found = sources[function].of(operand)
        if found is None:
            continue
        why = _why(rule, function, call, operand, found)
        if why:
            kept = sources[function].kept(operand)
            yield Read(_use(rule, call, kept or operand), kept, why)


def _use(rule: Rule, call: cst.Call, operand: cst.BaseExpression) -> ArrayUse:
    name = rule.flow.name_of(call)
    value = rule.flow.value(operand).but(place=SOMEWHERE)
    host_too = name.removeprefix("numpy.") in NEED_ARRAYS
    return ArrayUse(call, name or "numpy", operand, value, False if _is_cut(operand) else value.tracked, host_too)


def _is_of_library(rule: Rule) -> bool:
    """Whether a file is no script: whoever imports it may work on a device."""
    return "__main__" not in rule.source.text


def _allows_for_devices(rule: Rule) -> bool:
    """Whether a file moves anything, or is told devices."""
    if any(param.name.value == "device" for param in rule.source.nodes_of(cst.Param)):
        return True
    for call in rule.source.nodes_of(cst.Call):
        if isinstance(call.func, cst.Attribute):
            word = call.func.attr.value
            if word == "cuda" or (word == "cpu" and _is_read(rule, call)):
                return True
            if word == "to" and any(names_device(last_word(dotted(arg.value))) for arg in call.args):
                return True
    return False


def _is_read(rule: Rule, call: cst.Call) -> bool:
    """``x.cpu().numpy()``, unlike ``pack_padded_sequence(x, lengths.cpu())``."""
    above = rule.parent(call)
    while isinstance(above, cst.Attribute | cst.Call):
        if isinstance(above, cst.Attribute) and above.attr.value in ("numpy", "tolist"):
            return True
        above = rule.parent(above)
    return False


def _read_tensors(rule: Rule) -> Iterator[tuple[cst.Call, cst.BaseExpression]]:
    for call, given in read_as_arrays(rule):
        if called_name(call) == "numpy":
            yield call, given
            continue
        for operand in _parts(given):  # np.array([x, y])
            if _is_tensor(rule.flow.value(operand)):
                yield call, operand


def _is_tensor(value: Value) -> bool:
    """Whether it is a tensor on nobody knows which device; or, on one, what the flow takes for no tensor for sure."""
    if value.kind == LIST and value.items is not None:
        value = value.items
        return value.kind == THING and value.place.is_there
    if value.place.is_there and not isinstance(value.origin, cst.Param):
        return value.kind == THING
    return value.kind == TENSOR


def _parts(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    return [item.value for item in node.elements] if isinstance(node, cst.List | cst.Tuple) else [node]


def _is_told_apart(rule: Rule, call: cst.Call, operand: cst.BaseExpression) -> bool:
    """Whether a test about devices decides on the read: ``if x.is_cuda: return x.cpu().numpy()`` above it."""
    given = [operand, *(arg.value for arg in call.args)]
    names = {node.value for part in given for node in tree.walk(part) if isinstance(node, cst.Name)}
    if any(_asks(rule, test, names) for test, _, _ in tests_above(rule, call)):
        return True
    child: cst.CSTNode | None = call
    while child is not None and not isinstance(child, cst.FunctionDef):
        above = rule.parent(child)
        if isinstance(above, cst.IndentedBlock):
            for line in above.body:
                if line is child:
                    break
                if isinstance(line, cst.If) and leaves(line.body) and _asks(rule, line.test, names):
                    return True
        child = above
    return False


def _asks(rule: Rule, test: cst.BaseExpression, names: set[str]) -> bool:
    code = rule.code(test)
    if "ndarray" in code and not any(isinstance(node, cst.Name) and node.value in names for node in tree.walk(test)):
        code = code.replace("ndarray", "").replace("numpy", "")  # if isinstance(eps, np.ndarray): np.abs(x)
    return asks_for_device(code)


def _handed(rule: Rule, function: Function, params: set[str]) -> set[str]:
    """Where what callers in the file hand in is: `host`, `there`, or `unknown`."""
    found = {"host" for name in params if name in function.handed_host}
    for call in calls_of(rule.flow, function):
        for name in params:
            given = handed_in(call, function, name)
            if given is None:
                continue
            value = rule.flow.value(given)
            if value.place.is_host or _TO_HOST.search(rule.code(given)):
                found.add("host")
            elif value.place.is_there and not isinstance(value.origin, cst.Param):
                found.add("there")
    # pool.submit(measure, x.cpu())
    if any(
        name.value == function.name
        and not isinstance(above := rule.parent(name), cst.FunctionDef | cst.Attribute)
        and not (isinstance(above, cst.Call) and above.func is name)
        for name in rule.source.nodes_of(cst.Name)
    ):
        found.add("unknown")
    return found


def _why(rule: Rule, function: Function, call: cst.Call, operand: cst.BaseExpression, found: set[str]) -> str:
    own = isinstance(call.func, cst.Attribute) and call.func.value is operand  # x.numpy()
    params = {each.partition(" ")[2] for each in found if each.startswith("param ")}
    handed = _handed(rule, function, params) if params else set()
    if "host" in handed:
        return ""
    if handed == {"there"}:
        return "is handed in on a device"
    if "there" in found:
        return "is made of what is on a device"
    if "object" in found and found & {"unknown", "attribute"}:
        return ""  # book.rows_of(part), self.transform(images): what that gives, nobody knows
    if own and _is_cut(operand) and found != {"batch"}:
        return "is cut off from its graph, as is what comes from a model"
    names_devices = _names_devices(rule, function)
    if "own model" in found or ("model" in found and names_devices):
        return "is what a model gives"
    # signal + jitter.numpy()  may be told apart by what is on the host; np.abs(x: Tensor) is where the others are
    told = all(is_tensor_annotation(each.annotation) for each in function.params if each.name.value in params)
    is_tensor = rule.flow.value(operand).kind == TENSOR and not found & {"batch", "attribute", "unknown"}
    if not own and is_tensor and told and ("own there" in found or names_devices):
        return "meets what is put on a device"
    return ""


def _is_cut(node: cst.BaseExpression) -> bool:
    """``.detach()`` or ``.data`` on the way."""
    while True:
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            if node.func.attr.value == "detach":
                return True
            node = node.func.value
        elif isinstance(node, cst.Attribute) and node.attr.value == "data":
            return _DATA_SET.search(last_word(dotted(node.value))) is None
        elif isinstance(node, cst.Subscript):
            node = node.value
        else:
            return False


def _names_devices(rule: Rule, function: Function) -> bool:
    return re.search(r"\.to\(.*device|device=|\.cuda\(", rule.code(function.node)) is not None
