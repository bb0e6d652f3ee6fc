"""What the text of a function says, read before anything is followed: what it calls, binds and stores, and of what.

Evidence is what it does with its parameters: ``x.view(-1)`` or ``self.conv(x)`` make ``x`` a tensor,
``model.parameters()`` makes ``model`` a module. A method counts where it is called: ``model.dim`` is some number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.names import dotted, innermost_call, switched, target_names

if TYPE_CHECKING:
    from devlint.flow.scope import Function

# torch functions whose first argument says nothing (sizes, Python data)
_NOT_EVIDENCE = frozenset(
    "tensor as_tensor from_numpy asarray device manual_seed load save zeros ones empty full arange rand randn randint "
    "eye linspace randperm Tensor FloatTensor LongTensor Size is_tensor no_grad set_grad_enabled compile is_available "
    "stack cat set_device synchronize Generator finfo iinfo get_device_name script trace jit is_floating_point "
    "LayerNorm".split()
)
#: What takes a list or a tuple of nothing but tensors.
_JOIN = frozenset(
    f"torch.{name}" for name in "cat concat concatenate stack hstack vstack dstack row_stack column_stack".split()
)
#: What makes a tensor of Python's or numpy's data.
_FROM_DATA = frozenset({"tensor", "from_numpy", "Tensor", "FloatTensor", "LongTensor"})

# most nodes, and no evidence in themselves
_SAYS_NOTHING = frozenset(
    {
        cst.BinaryOperation, cst.Comparison, cst.ComparisonTarget, cst.Element, cst.Expr, cst.Float, cst.If,
        cst.IndentedBlock, cst.Index, cst.Integer, cst.List, cst.Return, cst.SimpleStatementLine, cst.SimpleString,
        cst.SubscriptElement, cst.Tuple,
    }
)  # fmt: skip


def read(function: Function, imports: dict[str, str]) -> None:
    """Read a function's text for evidence, without following it."""
    fields_of = tree.FIELDS
    stack: list[cst.CSTNode] = [function.node.body, function.node.params]
    attributes, methods, assigned = function.attributes, function.methods, function.assigned
    while stack:
        node = stack.pop()
        kind = type(node)
        if type(node) is cst.Name:
            if node.value == "device":
                function.device_aware = True
            continue
        if kind in _SAYS_NOTHING:
            pass
        elif type(node) is cst.Attribute:
            base = node.value
            attr = node.attr.value
            if type(base) is cst.Name:
                attributes.setdefault(base.value, set()).add(attr)
                if base.value == "self":
                    function.self_calls.add(attr)
            if attr == "device" or attr == "cuda" or attr == "is_cuda":
                function.device_aware = True
            elif attr == "__dict__" and dotted(base) == "self":
                function.sets_by_variable = True
            stack.append(base)
            continue
        elif type(node) is cst.Call:
            func = node.func
            if type(func) is cst.Attribute:
                if func.attr.value in table.MOVES or func.attr.value in table.TYPE_MOVES:
                    function.moves_something = function.moves_something or not _converts(node, imports)
                    if func.attr.value in table.MOVES:
                        _attributes_set(switched(func.value), function.moves)  # a module is moved in place
                if func.attr.value in table.TENSOR_ARGUMENTS:
                    _note_tensor_arguments(function, node, func, imports)
                if type(func.value) is cst.Name:
                    called = methods.setdefault(func.value.value, set())
                    called.add(func.attr.value)
                    if func.attr.value == "size" and node.args:
                        called.add("size()")
            if type(func) is cst.Name:
                function.calls.add(func.value)
                function.called.add(func.value)
            elif type(func) is cst.Attribute:
                name = dotted(func)
                if name:
                    head, _, rest = name.partition(".")
                    function.calls.add(imports.get(head, head) + "." + rest)
            for position, arg in enumerate(node.args):
                if type(arg.value) is cst.Name:
                    function.passed.add(arg.value.value)
                    if type(func) is cst.Name and not arg.star:
                        place = arg.keyword.value if arg.keyword is not None else position
                        function.handed_on.setdefault(arg.value.value, []).append((func.value, place))
                elif arg.keyword is not None and arg.keyword.value == "dtype" and _is_torchs(func, imports):
                    of, _, attr = dotted(arg.value).rpartition(".")  # torch.zeros(n, dtype=x.dtype)
                    if attr == "dtype" and of:
                        function.called_with.add(of)
            if node.args and not node.args[0].star:
                first = node.args[0].value
                if len(node.args) == 3 and dotted(func) == "setattr" and dotted(first) == "self":
                    name_node = node.args[1].value
                    if type(name_node) is cst.SimpleString:
                        function.stores.add(str(name_node.evaluated_value))
                    else:
                        function.sets_by_variable = True
                if type(first) is cst.Tuple or type(first) is cst.List:
                    # torch.cat((past, x), dim=1); a plain function may pad what is on the host, and its calls say so
                    if function.cls is not None and _qualified(func, imports) in _JOIN:
                        parts = (each.value for each in first.elements if type(each) is cst.Element)  # not `*rows`
                        function.called_with.update(part.value for part in parts if type(part) is cst.Name)
                elif type(first) is cst.Name:
                    if _takes_tensor(func, imports):
                        function.called_with.add(first.value)
                    elif type(func) is cst.Attribute and type(func.value) is cst.Name and func.value.value == "self":
                        function.fed.append((func.attr.value, first.value))
        elif type(node) is cst.Assign:
            _note_converted(function, node)
        elif type(node) is cst.Subscript:
            # x[:, None] is a tensor's (or numpy's) way of indexing
            if len(node.slice) > 1 and type(node.value) is cst.Name:
                attributes.setdefault(node.value.value, set()).add("[,]")
        elif type(node) is cst.Arg:
            if node.keyword is not None:
                if node.keyword.value == "device":
                    function.device_aware = True
                stack.append(node.value)
                continue
        elif (
            type(node) is cst.AssignTarget
            or type(node) is cst.AugAssign
            or type(node) is cst.AnnAssign
            or type(node) is cst.NamedExpr
        ):
            target_names(node.target, assigned)
            if type(node.target) is cst.Subscript:
                target_names(node.target.value, function.items_set)
            if kind is not cst.AugAssign:  # `self.total += x` writes into the same tensor
                _attributes_set(node.target, function.stores)
        elif type(node) is cst.For or type(node) is cst.CompFor:
            target_names(node.target, assigned)
            _note_rows(function, node)
        elif type(node) is cst.Global or type(node) is cst.Nonlocal:
            function.globals |= {item.name.value for item in node.names}
        elif type(node) is cst.Param:
            if node.name.value == "device":
                function.device_aware = True
        elif type(node) is cst.Yield:
            function.is_generator = True
        elif type(node) is cst.FunctionDef and node is not function.node:
            assigned.add(node.name.value)
        fields = fields_of.get(kind)
        if fields is None:
            continue
        for field in fields:
            child = getattr(node, field)
            if child is None:
                continue
            if type(child) is tuple or type(child) is list:
                stack.extend(child)
            elif type(child) is not cst.MaybeSentinel:
                stack.append(child)


def _note_tensor_arguments(function: Function, call: cst.Call, func: cst.Attribute, imports: dict[str, str]) -> None:
    """``table.gather(-1, t)``: `t` is a tensor."""
    if dotted(func.value).partition(".")[0] in imports:
        return  # tf.gather(table, t)
    for position in table.TENSOR_ARGUMENTS[func.attr.value]:
        given = call.args[position] if position < len(call.args) else None
        if given is not None and given.keyword is None and not given.star and type(given.value) is cst.Name:
            function.called_with.add(given.value.value)


def _converts(call: cst.Call, imports: dict[str, str]) -> bool:
    """``x.to(torch.int64)``, ``x.type(y.dtype)``: another type, at the same place."""
    for arg in call.args:
        head, _, rest = dotted(arg.value).partition(".")
        named = arg.keyword is not None and arg.keyword.value in ("dtype", "memory_format", "copy")
        of_torch = imports.get(head, head) == "torch" and rest in table.DTYPES
        if arg.star or not (named or of_torch or rest.rpartition(".")[2] == "dtype"):
            return False
    return bool(call.args)


def _note_converted(function: Function, node: cst.Assign) -> None:
    """``x = torch.tensor(x).to(device)``: what is done with ``x`` after that says nothing of what was handed in."""
    for assigned in node.targets:
        target = assigned.target
        if type(target) is cst.Tuple and type(node.value) is cst.Tuple:
            for each, made in zip(target.elements, node.value.elements, strict=False):  # x, y = tensor(x), tensor(y)
                _note_if_converted(function, each.value, made.value)
        else:
            _note_if_converted(function, target, node.value)


def _note_if_converted(function: Function, target: cst.BaseExpression, value: cst.BaseExpression) -> None:
    if type(target) is not cst.Name:
        return
    if type(value) is cst.BinaryOperation:  # sizes = torch.tensor(sizes[2:]) * 2
        _note_if_converted(function, target, value.left)
        _note_if_converted(function, target, value.right)
        return
    made = innermost_call(value)
    if type(made) is not cst.Call or not made.args or dotted(made.func).rpartition(".")[2] not in _FROM_DATA:
        return
    given = made.args[0].value
    while type(given) is cst.Subscript:
        given = given.value
    if type(given) is cst.Name and given.value == target.value:
        function.converted.add(target.value)


def _note_rows(function: Function, node: cst.For | cst.CompFor) -> None:
    """``for row in rows:``, ``for i, row in enumerate(rows):``."""
    iterated: cst.BaseExpression = node.iter
    target: cst.BaseExpression = node.target
    if type(iterated) is cst.Call and dotted(iterated.func) == "enumerate" and iterated.args:
        iterated = iterated.args[0].value
        target = target.elements[-1].value if type(target) is cst.Tuple else target
    if type(iterated) is cst.Name and type(target) is cst.Name:
        function.rows.setdefault(iterated.value, set()).add(target.value)


def _attributes_set(target: cst.BaseExpression, into: set[str]) -> None:
    if type(target) is cst.Attribute:
        if type(target.value) is cst.Name and target.value.value == "self":
            into.add(target.attr.value)
    elif type(target) is cst.Tuple or type(target) is cst.List:
        for item in target.elements:
            _attributes_set(item.value, into)
    elif type(target) is cst.Subscript:
        _attributes_set(target.value, into)


def _is_torchs(func: cst.BaseExpression, imports: dict[str, str]) -> bool:
    head, _, rest = _qualified(func, imports).partition(".")
    return head == "torch" and bool(rest)


def _qualified(func: cst.BaseExpression, imports: dict[str, str]) -> str:
    """``torch.cat`` of ``th.cat``"""
    head, _, rest = dotted(func).partition(".")
    return f"{imports.get(head, head)}.{rest}"


def _takes_tensor(func: cst.BaseExpression, imports: dict[str, str]) -> bool:
    """A call that says its first argument is a tensor: a torch function. (``self.x(...)`` may be anything.)"""
    if type(func) is not cst.Attribute:
        return False
    qualified = _qualified(func, imports)
    if qualified.startswith("torch.nn.functional."):
        return True
    if qualified in table.LIKE:
        return True
    operation = table.FUNCTIONS.get(qualified)
    return operation is not None and operation.operands in ("all", "first") and func.attr.value not in _NOT_EVIDENCE
