"""Whether a call makes the host wait for the device in the code that it runs, as far as that can be read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from devlint import tree
from devlint.flow import steps
from devlint.flow import torch_table as table
from devlint.flow.names import annotation_names, called_name, dotted, last_word, only_target
from devlint.flow.scope import CONSTRUCTOR, Class, Function
from devlint.flow.value import DATA, HOST_DATA, INSTANCE, LIST, MODULE, TENSOR, UNKNOWN_KIND, Value

if TYPE_CHECKING:
    from devlint.flow import Flow

#: Functions and methods that give as many values as there are to find.
_FINDING = frozenset({"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive"})
#: Functions that answer a question about values, or size what they give by the largest of them.
_ASKING = frozenset({"allclose", "bincount", "equal", "is_nonzero"})
#: What makes a tensor of Python's or numpy's data.
_OF_DATA = frozenset("torch.tensor torch.as_tensor torch.from_numpy torch.asarray".split())
#: What does so, too, where it is called with one thing, and not with sizes.
_LEGACY = re.compile(r"torch\.(Bool|Byte|Char|Short|Int|Long|Half|BFloat16|Float|Double|)Tensor")
#: Reads that some code does not make: text that nobody may look at, a size that is known.
_PERHAPS = frozenset({"format", "print", "in"})
#: Factories that read sizes, bounds and what they fill with: ``torch.arange(torch.max(x) + 1)``.
_SIZED = frozenset("arange range zeros ones empty full eye rand randn randperm".split())
#: Methods of distributions that look at what they are handed.
_VALIDATING = frozenset({"cdf", "icdf", "log_prob"})
#: Distributions that only hold others.
_UNCHECKED = frozenset({"Distribution", "Independent", "TransformedDistribution"})


def call_waits(flow: Flow, call: cst.Call, *, needed: bool = False) -> bool:
    """Whether each call of what is called waits for the device; ``needed``: for more than constants."""
    func, caller = call.func, flow.function(call)
    value = flow.value(func)
    if value.kind == MODULE:
        modules = {value.ref} if isinstance(value.ref, Class) else set()
        if isinstance(func, cst.Name) and caller is not None:
            modules |= caller.handed_modules.get(func.value, set())  # def train(model, ...): what callers hand in
        modules = modules or set(_built_under(flow, func, caller))
        return any(module_waits(flow, cls, needed=needed) for cls in modules)
    return any(f is not None and waits_each_time(flow, f, needed=needed) for f in _called(flow, call, caller))


def wait_of_called(flow: Flow, call: cst.Call) -> cst.BaseExpression | None:
    """Where a function of the same file that is called waits, or what it calls does."""
    value = flow.value(call.func)
    if value.kind == MODULE:
        called = [value.ref.find_method("forward")] if isinstance(value.ref, Class) else []
    else:
        called = list(_called(flow, call, flow.function(call)))
    for function in called:
        if function is not None and function.home is flow:
            inside = (node for node in tree.walk(function.node.body) if isinstance(node, cst.BaseExpression))
            return next((node for node in inside if waits(flow, node)), None)
    return None


def _built_under(flow: Flow, func: cst.BaseExpression, caller: Function | None) -> Iterator[Class]:
    """The modules that a path is bound to: ``net = Net()``, and then ``if parallel: net = nn.DataParallel(net)``."""
    path = dotted(func)
    for assign in flow.source.nodes_of(cst.Assign) if path else ():
        if any(dotted(target.target) == path for target in assign.targets):
            built = flow.value(assign.value)
            if (
                isinstance(built.ref, Class)
                and built.kind == MODULE
                and ("." in path or flow.function(assign) is caller)
            ):
                yield built.ref


def waits_each_time(flow: Flow, function: Function, *, needed: bool = False) -> bool:
    """Whether each call of a function waits for the device, in itself or in what it calls."""
    if function.home is not flow:
        return flow.waits_elsewhere(function, needed=needed)
    if needed not in function.waits:
        function.waits[needed] = False  # while it is being read, should it call itself
        function.waits[needed] = any(
            waits(flow, node, needed=needed)
            and steps.runs_each_time(flow, function, node)
            # if self.log: print(x.max().item())
            and not steps.is_under_test(flow, function, node)
            for node in tree.walk(function.node.body)
            if isinstance(node, cst.BaseExpression)
        )
    return function.waits[needed]


def module_waits(flow: Flow, cls: Class, *, needed: bool = False) -> bool:
    """Whether each call of a module waits for the device: its `forward`, or that of a module which it is made of."""
    if cls.home is not flow:
        return flow.waits_elsewhere(cls, needed=needed)
    if needed not in cls.waits:
        cls.waits[needed] = False
        forward = cls.find_method("forward")
        parts = (
            flow.value(call).ref
            for owner in cls.lineage
            for method in owner.methods.values()
            if method.role == CONSTRUCTOR
            for call in tree.walk(method.node.body)
            if type(call) is cst.Call and flow.value(call).kind == MODULE
        )
        in_forward = forward is not None and waits_each_time(flow, forward, needed=needed)
        cls.waits[needed] = in_forward or any(
            module_waits(flow, part, needed=needed) for part in parts if isinstance(part, Class)
        )
    return cls.waits[needed]


def _called(flow: Flow, call: cst.Call, caller: Function | None) -> Iterator[Function | None]:
    """The functions and methods of the project that a call runs."""
    func = call.func
    known = flow.value(func).ref
    if isinstance(known, Function):
        yield known
        return
    if isinstance(func, cst.Attribute):
        owner = flow.value(func.value)
        if owner.kind in (MODULE, INSTANCE) and isinstance(owner.ref, Class):
            yield owner.ref.find_method(func.attr.value)
            return
    yield steps.function_called(flow, caller, call)
    unit = flow.built_or_called(flow.scope.qualified(func)) if dotted(func) else None
    yield unit.function if unit is not None else None


def waits(flow: Flow, node: cst.BaseExpression, *, needed: bool = False) -> bool:
    """Whether the host waits at a node, or in what is called there."""
    at = needs_wait_at if needed else waits_at
    return at(flow, node) or (type(node) is cst.Call and call_waits(flow, node, needed=needed))


def waits_at(flow: Flow, node: cst.BaseExpression) -> bool:
    """Whether the host waits at a node: for a value, for how many there are, for a copy to the device."""
    if needs_wait_at(flow, node):
        return True
    if not isinstance(node, cst.Call):
        return False
    move = flow.facts.moves.get(node)
    if move is not None:
        # torch.zeros(n).to(device); for layer, graph in zip(self.layers, graphs): x = layer(graph.to(self.device), x)
        from_host = move.value.place.is_host or move.value.kind == UNKNOWN_KIND
        return move.target.is_there and from_host and move.non_blocking is not True
    return _copies_data(flow, node)


def needs_wait_at(flow: Flow, node: cst.BaseExpression) -> bool:
    """Whether the host waits at a node for what it can hardly do without: a value, a size, a copy of data.

    What it could have made on the device is no such thing: a constant, what a factory gives.
    """
    wait = flow.facts.waits.get(node)
    if wait is not None:
        return wait.what not in _PERHAPS
    if _is_tested(flow, node):
        return True
    if isinstance(node, cst.Subscript):
        return picks_by_mask(flow, node) or _slices_by_tensor(flow, node) or _picks_by_table(flow, node)
    if not isinstance(node, cst.Call):
        return False
    if _copies_data(flow, node):
        return not is_constant(node.args[0].value)
    if _brings_data(flow, node) or _spreads_by_tensor(flow, node):
        return True
    name = flow.name_of(node)
    if name.startswith("torch.distributions."):
        return _validates(node) and any(_may_be_there(flow, arg.value) for arg in node.args)
    if name.startswith("torch."):
        given = flow.value(node.args[0].value) if node.args else HOST_DATA
        if name[6:] in _SIZED:
            return any(_is_there(flow, arg.value) for arg in node.args)
        looks = (
            name[6:] in _FINDING | _ASKING
            or name in table.CHECKED_FUNCTIONS
            or (name == "torch.where" and len(node.args) == 1)
        )
        return looks and not given.place.is_host and not given.is_data
    return isinstance(node.func, cst.Attribute) and _method_waits(flow, node, node.func)


def _method_waits(flow: Flow, node: cst.Call, func: cst.Attribute) -> bool:
    receiver, name = flow.value(func.value), func.attr.value
    if name in _VALIDATING and len(node.args) == 1 and receiver.kind in (INSTANCE, UNKNOWN_KIND):
        # self.normal.cdf(x)   looks whether `x` is a possible outcome
        is_project = isinstance(receiver.ref, Class)
        return not is_project and _is_there(flow, node.args[0].value) and not _built_unchecked(flow, func.value)
    if receiver.kind not in (TENSOR, UNKNOWN_KIND) or receiver.place.is_host:
        return False
    return name == "masked_select" or (not node.args and name in table.EXPLICIT_WAITS | _FINDING)


def _is_there(flow: Flow, node: cst.BaseExpression) -> bool:
    """Whether a node gives a tensor that is not on the host."""
    value = flow.value(node)
    return value.kind == TENSOR and not value.place.is_host


def _may_be_there(flow: Flow, node: cst.BaseExpression) -> bool:
    value = flow.value(node)
    return value.kind in (TENSOR, UNKNOWN_KIND) and not value.place.is_host


def _is_tested(flow: Flow, node: cst.BaseExpression) -> bool:
    """``if self.ready:`` of a buffer, ``if not torch.any(x):`` of what is handed in."""
    parent = flow.source.parents.get(node)
    if isinstance(parent, cst.If | cst.IfExp | cst.While):
        tested = parent.test is node
    elif isinstance(parent, cst.BooleanOperation):
        tested = parent.left is node
    else:
        tested = isinstance(parent, cst.UnaryOperation) and isinstance(parent.operator, cst.Not)
    return tested and _is_there(flow, node)


def _slices_by_tensor(flow: Flow, node: cst.Subscript) -> bool:
    """``x[: lengths[i]]``: the bounds of a slice are read on the host."""
    bounds = (
        b for item in node.slice if isinstance(item.slice, cst.Slice) for b in (item.slice.lower, item.slice.upper)
    )
    return any(
        _is_there(flow, bound) or (isinstance(bound, cst.Subscript) and _is_part_of_an_argument(flow, bound))
        for bound in bounds
        if bound is not None
    )


def _is_part_of_an_argument(flow: Flow, node: cst.Subscript) -> bool:
    """``lengths[i]`` of an argument that nothing says anything of: `forward` is handed tensors."""
    function, name = flow.function(node), dotted(node.value)
    if (
        function is None
        or name not in function.param_names
        or flow.value(node.value).kind not in (TENSOR, UNKNOWN_KIND)
    ):
        return False
    return not flow.value(node.value).place.is_host and all(
        param.annotation is None or param.name.value != name or "Tensor" in flow.source.code(param.annotation)
        for param in function.params
    )


def _picks_by_table(flow: Flow, node: cst.Subscript) -> bool:
    """``x[:, [2, 1, 0]]``, ``x[rows]``: indices that are on the host are copied to where the tensor is."""
    held = flow.value(node.value)
    return (
        held.holds_tensors
        and not held.place.is_host
        and any(isinstance(item.slice, cst.Index) and _is_table(flow, item.slice.value) for item in node.slice)
    )


def _is_table(flow: Flow, node: cst.BaseExpression) -> bool:
    value = flow.value(node)
    if value.kind == TENSOR and value.place.is_host and value.zero is False:
        return True
    if isinstance(node, cst.List | cst.ListComp) or (isinstance(node, cst.Call) and dotted(node.func) == "list"):
        return True
    if value.kind == LIST:
        return isinstance(value.items, Value) and value.items.is_data
    return (
        isinstance(node, cst.Name)
        and value.kind in (DATA, UNKNOWN_KIND)
        and (_is_declared_list(flow, node) or any(_gives_list(bound) for bound in bound_to(flow, node)))
    )


def _is_declared_list(flow: Flow, node: cst.Name) -> bool:
    """``def pick(self, x, rows: list[int] | None = None):``"""
    function = flow.function(node)
    return function is not None and any(
        last_word(name) in ("list[]", "List[]", "Sequence[]", "list", "List")
        for param in function.params
        if param.name.value == node.value and param.annotation is not None
        for name in annotation_names(param.annotation.annotation)
    )


def _gives_list(node: cst.BaseExpression) -> bool:
    """``list(range(n))``, ``found.tolist()``"""
    return isinstance(node, cst.Call) and (dotted(node.func) == "list" or called_name(node) == "tolist")


def bound_to(flow: Flow, name: cst.Name) -> Iterator[cst.BaseExpression]:
    """What assignments of the function bind a name to."""
    function = flow.function(name)
    for assign in flow.source.nodes_of(cst.Assign):
        if flow.function(assign) is function and any(dotted(each.target) == name.value for each in assign.targets):
            yield assign.value


def _brings_data(flow: Flow, node: cst.Call) -> bool:
    """``torch.tensor([step]).to(device)``, ``torch.from_numpy(rows).cuda()``: what only the host has."""
    move = flow.facts.moves.get(node)
    if move is None or move.value.place.is_there or move.non_blocking is True:
        return False
    # torch.as_tensor(rows).to(device)   of rows that nothing says more of
    made = move.value.origin if move.value.place.is_host else move.receiver
    if not isinstance(made, cst.Call) or not (move.target.is_there or move.target.kind == "param"):
        return False
    name = flow.name_of(made)
    if name not in _OF_DATA and not (_LEGACY.fullmatch(name) and len(made.args) == 1):
        return False  # torch.FloatTensor(n, m)
    return not (made.args and is_constant(made.args[0].value))


def _spreads_by_tensor(flow: Flow, node: cst.Call) -> bool:
    """``x.repeat_interleave(counts, dim=0)``: the host reads how many that makes unless ``output_size=`` says it."""
    if called_name(node) != "repeat_interleave" or any(
        arg.keyword is not None and arg.keyword.value == "output_size" for arg in node.args
    ):
        return False
    given = [arg.value for arg in node.args if arg.keyword is None or arg.keyword.value == "repeats"]
    if flow.name_of(node) == "torch.repeat_interleave":
        given = given[1:] or given
    repeats = given[0] if given else None
    if repeats is None or flow.value(repeats).kind != UNKNOWN_KIND:
        return repeats is not None and _is_there(flow, repeats)
    # counts = graph.batch_num_nodes()   and not   def spread(x, beams): return x.repeat_interleave(beams, 0)
    asked = [repeats, *(bound_to(flow, repeats) if isinstance(repeats, cst.Name) else ())]
    return any(_asks_an_object(n) for value in asked for n in tree.walk(value))


def _asks_an_object(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and not node.args


def _copies_data(flow: Flow, node: cst.Call) -> bool:
    """``torch.tensor([0, n], device=device)``, ``x.new_tensor(rows)``"""
    if not node.args or flow.value(node.args[0].value).holds_tensors:
        return False
    if flow.name_of(node) in ("torch.tensor", "torch.as_tensor"):
        place = flow.value(node).place
        return place.is_there or place.kind == "param"
    if not isinstance(node.func, cst.Attribute) or node.func.attr.value != "new_tensor":
        return False
    # def weigh(x, rows): return x.new_tensor(list(rows))   of an `x` that nothing says more of
    return _may_be_there(flow, node.func.value)


def is_constant(node: cst.BaseExpression) -> bool:
    """A number, or a list of numbers, that the code writes out."""
    if isinstance(node, cst.Integer | cst.Float):
        return True
    if isinstance(node, cst.Name):
        return node.value in ("True", "False")
    if isinstance(node, cst.UnaryOperation):
        return is_constant(node.expression)
    if isinstance(node, cst.BinaryOperation):
        return is_constant(node.left) and is_constant(node.right)
    if isinstance(node, cst.List | cst.Tuple):
        return bool(node.elements) and all(
            isinstance(item, cst.Element) and is_constant(item.value) for item in node.elements
        )
    if isinstance(node, cst.Call):
        return dotted(node.func) == "float" and len(node.args) == 1 and isinstance(node.args[0].value, cst.SimpleString)
    return dotted(node) in ("math.pi", "math.e", "math.inf", "np.pi", "numpy.pi", "torch.inf", "torch.pi")


def _validates(node: cst.Call) -> bool:
    """Whether a distribution looks at what it is built from: it does unless it is told `validate_args=False`."""
    name = dotted(node.func).rpartition(".")[2]
    return name[:1].isupper() and name not in _UNCHECKED and not _says_unchecked(node)


def _built_unchecked(flow: Flow, node: cst.BaseExpression) -> bool:
    """Whether the file binds what a node names to a distribution that is told `validate_args=False`."""
    return any(
        isinstance(assign.value, cst.Call)
        and _says_unchecked(assign.value)
        and any(dotted(target.target) == dotted(node) for target in assign.targets)
        for assign in flow.source.nodes_of(cst.Assign)
    )


def _says_unchecked(call: cst.Call) -> bool:
    return any(
        arg.keyword is not None and arg.keyword.value == "validate_args" and dotted(arg.value) == "False"
        for arg in call.args
    )


def picks_by_mask(flow: Flow, node: cst.Subscript) -> bool:
    """``box[mask]``, and not ``box[mask] = 0``: how many there are is for the host to know."""
    if isinstance(flow.source.parents.get(node), cst.AssignTarget | cst.AugAssign) or flow.value(node.value).is_data:
        return False
    for item in node.slice:
        if not isinstance(item.slice, cst.Index):
            continue
        value = flow.value(item.slice.value)
        if value.ref == "mask" or (not value.is_data and _is_mask(flow, item.slice.value)):
            return not flow.value(node.value).place.is_host
    return False


def _is_mask(flow: Flow, node: cst.BaseExpression) -> bool:
    """``batch.mask``, and ``kept`` of ``kept = labels[..., 1:].ne(0).view(-1)``, whatever ``labels`` is."""
    if _is_named_mask(node):
        return True
    function = flow.function(node)
    if not isinstance(node, cst.Name) or function is None:
        return False
    bound = [
        each.value
        for each in tree.walk(function.node.body)
        if isinstance(each, cst.Assign) and dotted(only_target(each)) == node.value
    ]
    return bool(bound) and all(_compares(value) for value in bound)


def _compares(node: cst.BaseExpression) -> bool:
    """``x != 0``, ``x.ne(0)``, ``(x > 0).view(-1)``"""
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        if node.func.attr.value in COMPARING and node.args:
            return True
        node = node.func.value
    return isinstance(node, cst.Comparison) and not isinstance(node.comparisons[0].operator, _NO_COMPARISON)


#: Methods that compare, element by element.
COMPARING = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_NO_COMPARISON = (cst.Is, cst.IsNot, cst.In, cst.NotIn)


def _is_named_mask(node: cst.BaseExpression) -> bool:
    """``batch.mask``, ``~mask``, ``pairs_mask & valid``"""
    if isinstance(node, cst.UnaryOperation):
        return isinstance(node.operator, cst.BitInvert) and _is_named_mask(node.expression)
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.BitAnd | cst.BitOr):
        return _is_named_mask(node.left) or _is_named_mask(node.right)
    return dotted(node).rpartition(".")[2].endswith("mask")
