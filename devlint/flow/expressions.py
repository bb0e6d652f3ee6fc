"""What an expression is: one function for each LibCST class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import libcst as cst

from devlint.flow import arrays, attributes, binding, calls, copies, hypothesis, loaders, rounds, suppositions
from devlint.flow.arguments import Args, Operand
from devlint.flow.frame import Frame
from devlint.flow.names import dotted
from devlint.flow.narrowing import narrow
from devlint.flow.operations import have_rows
from devlint.flow.place import SOMEWHERE, UNKNOWN_PLACE
from devlint.flow.value import (
    ARRAY,
    DATA,
    DEVICE,
    DICT,
    ELEMENT,
    FILE,
    FUNCTION,
    HOST_DATA,
    LIST,
    LOADER,
    MODULE,
    NAME,
    NONE,
    NOTHING,
    NUMPY_ARRAY,
    ROW,
    TENSOR,
    THING,
    TUPLE,
    UNKNOWN,
    UNKNOWN_KIND,
    Value,
    any_of,
    branched,
    carried,
    element,
    join,
    one_of,
    tensor,
    updated,
)

_CONSTANTS: dict[str, Value] = {"None": NOTHING, "True": HOST_DATA, "False": HOST_DATA}


def evaluate(frame: Frame, node: cst.BaseExpression) -> Value:
    """The value of an expression; records it, and whatever happens in it, with the flow."""
    handler = _HANDLERS.get(type(node))
    value = handler(frame, node) if handler is not None else UNKNOWN
    frame.values[node] = value
    return value


def _name(frame: Frame, node: cst.Name) -> Value:
    name = node.value
    value = frame.lookup(name)
    if value is not None:
        return value
    constant = _CONSTANTS.get(name)
    if constant is not None:
        return constant
    qualified = frame.scope.imports.get(name)
    if qualified is not None:
        return frame.flow.named(qualified)
    if hypothesis.names_device(name):
        return Value(DEVICE, frame.symbol(name))
    return UNKNOWN


def _attribute(frame: Frame, node: cst.Attribute) -> Value:
    base = evaluate(frame, node.value)
    attr = node.attr.value
    if frame.flow.has_paths and frame.env is not None:
        key = frame.key(node)
        if key is not None:
            known = frame.lookup(key)
            if known is not None:
                return known
    return attributes.attribute(frame, node, base, attr)


def _subscript(frame: Frame, node: cst.Subscript) -> Value:
    base = evaluate(frame, node.value)
    indices: list[Operand] = []
    sliced = False
    for item in node.slice:
        part = item.slice
        if type(part) is cst.Index:
            indices.append((part.value, evaluate(frame, part.value)))
        elif type(part) is cst.Slice:
            sliced = True
            for bound in (part.lower, part.upper, part.step):
                if bound is not None:
                    value = evaluate(frame, bound)
                    if value.kind == TENSOR:
                        frame.wait(bound, "index", bound, value, explicit=False)
    if frame.flow.has_paths and frame.env is not None:
        key = frame.key(node)
        if key is not None:
            known = frame.lookup(key)
            if known is not None:
                return known
    kind = base.kind
    if kind == THING and base.place.is_there and sliced and len(node.slice) > 1:
        kind, base = TENSOR, base.but(kind=TENSOR, ref=None)  # `targets[:, 0]` of what was moved: a tensor
    if kind == TENSOR:
        return _index_tensor(frame, node, base, indices, sliced)
    if kind == THING:
        found = loaders.entry(base, constant_key(indices[0][0]) if len(indices) == 1 else None)
        if found is not None:
            return found
        if base.place.is_host and base.origin in frame.facts.moves:
            _index_moved(frame, node, base, indices)
        # batch["x"] and batch[0] are part of it; x[rows] is a copy
        copied = any(index.kind in (TENSOR, ARRAY, LIST) for _, index in indices)
        if copied and base.ref != "moved":
            return base.but(pinned=False if base.pinned is False else None, ref=None)
        if base.zero is False and not sliced and not isinstance(node.value, cst.Call):
            base = base.but(zero=None)  # u.max(0).values[0]; v, k = u.sort(); v[0]   a number
        # image = batch["image"]; net(image.to(device))   leaves `image` on the host; `batch.to(device)` may not
        of_loader = isinstance(base.ref, Value) and base.ref.kind == LOADER
        return base.but(text=ELEMENT) if of_loader and not sliced else base
    if kind == LIST:
        return base.but(ref=None) if sliced else element(base)  # steps[1:]   may leave out what is elsewhere
    if kind == TUPLE:
        if sliced:
            return Value(LIST, items=element(base))
        position = _integer(indices[0][0]) if len(indices) == 1 else None
        if position is not None and -len(base.items) <= position < len(base.items):
            return base.items[position]
        return element(base)
    if kind == DICT:
        constant = constant_key(indices[0][0]) if len(indices) == 1 else None
        if constant is not None:
            return base.items.get(constant) or base.items.get("*", UNKNOWN)
        return any_of(base)
    if kind == MODULE:
        return element(base) if not sliced else base
    if kind == ARRAY:
        return base
    if kind == DATA:
        return HOST_DATA
    if kind == UNKNOWN_KIND:
        if base.items is None:
            return UNKNOWN  # table[rows]   an object of another file's may give arrays
        frame.note_indexed(base, indices)
        # scores[kept]: nothing that is on the host takes indices that are on a device
        there = next((i.place for _, i in indices if i.kind == TENSOR and i.place.is_there and i.zero is False), None)
        if there is None:
            return base
        # def turn(q, sin, rows): return q * sin[rows]   may be handed rows on the host, and a table that is not
        handed = frame.function is not None and there.name in frame.function.param_names
        return Value(THING, SOMEWHERE if handed else there, node)
    return base if arrays.is_axes(base) else UNKNOWN


def _index_tensor(frame: Frame, node: cst.Subscript, base: Value, indices: list[Operand], sliced: bool) -> Value:
    if base.place.kind == "param":
        frame.note_indexed(base, indices)
    for index_node, index in indices:
        if index.kind == TENSOR and index.zero is False:
            frame.meet_index(node, (node.value, base), (index_node, index))
        if base.place.is_there and index.place.is_there and index.ref == "mask" and not index.zero:
            frame.wait(node, "mask", index_node, index, explicit=False)
    if base.zero is True and any(type(index_node) is cst.Integer for index_node, _ in indices):
        return UNKNOWN  # x.mean()[0]   raises, and gave a number once
    # an integer takes a dimension away; a slice and a `None` leave one
    zero = False if sliced or any(index.kind == NONE for _, index in indices) else None
    if any(index.kind == TENSOR and index.zero is False for _, index in indices):
        zero = False
    pinned = base.pinned
    if any(index.kind not in (DATA, NONE) for _, index in indices):
        pinned = False if base.pinned is False else None  # x[mask], x[rows] copy; x[i] may
    text = ROW if len(indices) == 1 and not sliced and indices[0][1].kind == DATA else base.text
    part = base.but(
        zero=zero, grad=False, obj=None, pinned=pinned, ref=base.ref if base.ref == "mask" else None, text=text
    )
    return carried(part, base) if zero is False else part


def _index_moved(frame: Frame, node: cst.Subscript, base: Value, indices: list[Operand]) -> None:
    """``features = net(x).cpu(); features[rows]``: what rows that are tensors are taken of is a tensor."""
    for index_node, index in indices:
        if index.kind == TENSOR and index.zero is False and index.place.is_there:
            frame.met(node, "indexing", (node.value, base), (index_node, index))


def _integer(node: cst.BaseExpression) -> int | None:
    sign = 1
    if type(node) is cst.UnaryOperation and type(node.operator) is cst.Minus:
        sign, node = -1, node.expression
    if type(node) is cst.Integer:
        try:
            return sign * int(node.value.replace("_", ""), 0)
        except ValueError:
            return None
    return None


def constant_key(node: cst.BaseExpression) -> str | None:
    """The key of a dictionary that a constant stands for; ``None`` where it is none."""
    if type(node) is cst.SimpleString:
        return _text(node)
    if type(node) is cst.Integer:
        return node.value
    return None


def _text(node: cst.SimpleString) -> str | None:
    """The string that a literal stands for; ``None`` for bytes."""
    code = node.value
    if code[0] in "\"'" and "\\" not in code and code[:3] not in ('"""', "'''"):
        return code[1:-1]  # most are plain, and evaluating one costs a compilation
    value = node.evaluated_value
    return value if isinstance(value, str) else None


def _string(frame: Frame, node: cst.SimpleString) -> Value:
    text = _text(node) if len(node.value) < 24 else None
    return Value(DATA, HOST_DATA.place, text=text) if text is not None else HOST_DATA


def _number(frame: Frame, node: cst.BaseExpression) -> Value:
    return HOST_DATA


def _formatted(frame: Frame, node: cst.FormattedString) -> Value:
    text = ""
    for part in node.parts:
        if type(part) is cst.FormattedStringExpression:
            value = evaluate(frame, part.expression)
            if value.kind == TENSOR:
                frame.wait(part.expression, "format", part.expression, value, explicit=False)
            if part.format_spec:
                for spec in part.format_spec:
                    if type(spec) is cst.FormattedStringExpression:
                        evaluate(frame, spec.expression)
        elif type(part) is cst.FormattedStringText:
            text += part.value
    # f"cuda:{rank}" is an accelerator, whichever
    if text.startswith(("cuda", "npu", "xpu")):
        return Value(DATA, HOST_DATA.place, text="cuda", ref="choice")
    return HOST_DATA


def _concatenated(frame: Frame, node: cst.ConcatenatedString) -> Value:
    evaluate(frame, node.left)
    evaluate(frame, node.right)
    return HOST_DATA


def _binary(frame: Frame, node: cst.BinaryOperation) -> Value:
    # `a + b + c + ...` nests to the left: follow it down without recursion
    chain = [node]
    while type(chain[-1].left) is cst.BinaryOperation:
        chain.append(chain[-1].left)
    left = evaluate(frame, chain[-1].left)
    for current in reversed(chain):
        right = evaluate(frame, current.right)
        left = operate(frame, current, current.left, left, current.right, right, type(current.operator))
        frame.values[current] = left
    return left


_STRICT_OPERATORS = (cst.MatrixMultiply, cst.MatrixMultiplyAssign)


def operate(
    frame: Frame,
    node: cst.CSTNode,
    left_node: cst.BaseExpression,
    left: Value,
    right_node: cst.BaseExpression,
    right: Value,
    operator: type,
) -> Value:
    """The value of ``left <operator> right``."""
    a, b = left.kind, right.kind
    tensors = (TENSOR, THING)
    copies.read(frame, node, left)
    copies.read(frame, node, right)
    if operator in (cst.Modulo, cst.Multiply) and _is_text(left_node, left):
        return _text_with(frame, left, right_node, right)
    if MODULE in (a, b):
        return UNKNOWN  # steps / self.model: whatever it is called, no module is counted with
    if UNKNOWN_KIND in (a, b):
        _counted_together(frame, left_node, left, right_node, right)
    if (a in _CONTAINERS and b in tensors) or (b in _CONTAINERS and a in tensors):
        return _container_with_tensor(frame, left_node, left, right_node, right, operator)
    if a in tensors or b in tensors:
        if (left.text == FILE and b not in tensors) or (right.text == FILE and a not in tensors):
            return UNKNOWN  # len(rows) - checkpoint["config"]["context"]: a file holds numbers, too
        if left.ref == "moved" and a == THING and b not in tensors:
            return UNKNOWN if b == UNKNOWN_KIND else left.but(kind=TENSOR, ref=None)
        strict = operator in _STRICT_OPERATORS
        if type(node) is cst.AugAssign and a == TENSOR and left.place.is_host:
            strict = True  # what is written to must be there too, whatever its dimensions
        chosen = frame.meet(node, [(left_node, left), (right_node, right)], "an operation", strict=strict)
        assert chosen is not None
        if a in tensors and b in tensors:
            place, zero = chosen.place, _zero_together(left.zero, right.zero)
        elif (a == ARRAY or b == ARRAY) and chosen.place.is_host:
            return UNKNOWN  # numpy's or torch's, as the order has it
        elif (a in (UNKNOWN_KIND, NAME) or b in (UNKNOWN_KIND, NAME)) and chosen.follows:
            return suppositions.together(left, right)
        else:
            # a number beside it, or a tensor that must be at the same place
            place, zero = chosen.place, chosen.zero
        if operator in _STRICT_OPERATORS and place.is_host:
            both = [(left_node, left), (right_node, right)]
            zero = False if have_rows(frame, both) else None  # r @ r   of two vectors is a number
        mask = left.ref == "mask" or right.ref == "mask"
        bitwise = operator in (cst.BitAnd, cst.BitOr, cst.BitXor)
        # `x /= 255` stays in its memory; other results are new, which torch does not pin
        pinned = left.pinned if type(node) is cst.AugAssign and a in tensors else False if place.is_host else None
        ref = "mask" if mask and bitwise else None
        tracked = frame.tracked((left, right))
        if type(node) is cst.AugAssign and left.ref == "non-leaf":
            ref, tracked = left.ref, left.tracked  # `w -= lr * w.grad` is the same tensor still
        result = tensor(place, chosen.origin, zero=zero, ref=ref, attr=chosen.attr, pinned=pinned, tracked=tracked)
        if DATA in (a, b) or NAME in (a, b) or UNKNOWN_KIND in (a, b):
            result = carried(result, chosen)
            if chosen.text == ROW:
                result = result.but(text=ROW)  # h, w = sizes[i] // 2
        result = suppositions.beside(frame, result, ((left_node, left), (right_node, right)))
        return result if TENSOR in (a, b) or (a in tensors and b in tensors) else _as_opaque(result, chosen)
    if a == DICT and b == DICT and operator in (cst.BitOr, cst.BitOrAssign):
        return updated(left, right)
    if a == LIST and operator in (cst.Add, cst.AddAssign, cst.Multiply):
        return join(left, right) if b == LIST else left
    if a == ARRAY or b == ARRAY:
        return NUMPY_ARRAY
    if a == DATA and (b == DATA or type(left_node) is cst.List):
        return HOST_DATA
    if a == DATA and left.text is not None and operator is cst.Add:
        return _text_with(frame, left, right_node, right)
    return suppositions.together(left, right)


_CONTAINERS = (LIST, TUPLE, DICT)


def _counted_together(
    frame: Frame, left_node: cst.BaseExpression, left: Value, right_node: cst.BaseExpression, right: Value
) -> None:
    """``def inverse(z, mean): return z + mean``: where both are tensors, as callers know, they are at one place."""
    pair = [value.items if value.kind == UNKNOWN_KIND else value for value in (left, right)]
    for node, value, each in zip((left_node, right_node), (left, right), pair, strict=True):
        if not (isinstance(each, Value) and each.kind == TENSOR and isinstance(each.origin, cst.Param)):
            return
        # scale = table.at(step); x / scale   what something unknown makes of an index may be anywhere
        if value.kind == UNKNOWN_KIND and dotted(node) != each.origin.name.value:
            return
    frame.constrain((left_node, pair[0]), (right_node, pair[1]))


def _is_text(node: cst.BaseExpression, value: Value) -> bool:
    known = value.kind == DATA and value.text is not None
    return known or type(node) in (cst.SimpleString, cst.FormattedString, cst.ConcatenatedString)


def _text_with(frame: Frame, text: Value, node: cst.BaseExpression, other: Value) -> Value:
    """``"%.3f" % loss``, ``"-" * n``: a string, whatever it is filled with, however often it is repeated."""
    if other.kind == TENSOR:
        frame.wait(node, "format", node, other, explicit=False)
    return Value(DATA, HOST_DATA.place, text="cuda") if (text.text or "").startswith("cuda") else HOST_DATA


def _container_with_tensor(
    frame: Frame, left_node: cst.BaseExpression, left: Value, right_node: cst.BaseExpression, right: Value, by: type
) -> Value:
    """``[True] * n``: Python repeats the list as often as the tensor says. No other operator makes a tensor either."""
    node, number, container = (left_node, left, right) if left.holds_tensors else (right_node, right, left)
    if by in (cst.Multiply, cst.MultiplyAssign) and container.kind != DICT:
        if number.kind == TENSOR:
            frame.wait(node, "index", node, number, explicit=False)
        return Value(LIST, items=element(container) if container.items else None)
    if by in (cst.Add, cst.AddAssign) and left.kind == THING and left.ref is None and container.items:
        inside = element(container)  # torch.meshgrid(x, y) + (torch.zeros(n, n),)
        return number if inside.kind == TENSOR and inside.place == number.place else UNKNOWN
    if by is cst.AddAssign and left.kind == LIST:  # rows += batch  takes its elements in
        return Value(LIST, items=join(left.items, element(right)) if left.items is not None else element(right))
    return UNKNOWN


def _as_opaque(result: Value, operand: Value) -> Value:
    """The result of an operation with a number: what a batch holds may be a number itself, or a list of them."""
    if not isinstance(operand.ref, Value):
        return result
    return result.but(kind=THING, ref=operand.ref.but(pinned=None))  # new memory: the loader's pin is not its


def _zero_together(a: bool | None, b: bool | None) -> bool | None:
    """Whether the result of an elementwise operation is zero-dimensional."""
    if a is False or b is False:
        return False
    return True if a and b else None


def _unary(frame: Frame, node: cst.UnaryOperation) -> Value:
    value = evaluate(frame, node.expression)
    if type(node.operator) is cst.Not:
        frame.truth_tested(node.expression, value)
        return HOST_DATA
    if value.holds_tensors:
        return carried(value.but(grad=False, obj=None), value)
    return HOST_DATA if value.kind == DATA else NUMPY_ARRAY if value.kind == ARRAY else UNKNOWN


def _boolean(frame: Frame, node: cst.BooleanOperation) -> Value:
    chain = [node]
    while type(chain[-1].left) is cst.BooleanOperation:
        chain.append(chain[-1].left)
    left_node = chain[-1].left
    value = evaluate(frame, left_node)
    for current in reversed(chain):
        frame.truth_tested(current.left, value)
        right = _evaluate_under(frame, current.right, current.left, holds=isinstance(current.operator, cst.And))
        if type(current.operator) is cst.Or:
            value = join(value, right)
        else:
            value = right if value.kind in (DATA, NONE) else join(value, right)
        frame.values[current] = value
    return value


def _comparison(frame: Frame, node: cst.Comparison) -> Value:
    left_node, left = node.left, evaluate(frame, node.left)
    result = HOST_DATA
    for target in node.comparisons:
        right = evaluate(frame, target.comparator)
        operator = type(target.operator)
        if operator in (cst.Is, cst.IsNot):
            pass
        elif operator in (cst.In, cst.NotIn):
            if left.kind == TENSOR and right.kind in (LIST, TUPLE, DICT, DATA):
                frame.wait(node, "in", node.left, left, explicit=False)
        elif left.kind in (TENSOR, THING) or right.kind in (TENSOR, THING):
            moved = "moved" in (left.ref, right.ref) and TENSOR not in (left.kind, right.kind)
            sides = ((left_node, left), (target.comparator, right))
            if any(value.kind in _CONTAINERS or _is_text(side, value) for side, value in sides):
                pass  # counts == [0, 1], batch["split"] == "train": torch leaves it to Python, which gives a bool
            elif operator is cst.NotEqual and ARRAY in (left.kind, right.kind):
                result = UNKNOWN  # found != np.zeros(3)   is a bool; a single number gives a tensor, as all else does
            elif NONE not in (left.kind, right.kind) and not moved:
                copies.read(frame, node, left)
                copies.read(frame, node, right)
                chosen = frame.meet(node, [(left_node, left), (target.comparator, right)], "a comparison")
                assert chosen is not None
                if UNKNOWN_KIND in (left.kind, right.kind) and chosen.follows:
                    chosen = chosen.but(place=UNKNOWN_PLACE)
                zero = _zero_together(
                    left.zero if left.holds_tensors else True, right.zero if right.holds_tensors else True
                )
                pinned = False if chosen.place.is_host else None
                ref = None if zero else "mask"
                attr = chosen.attr
                result = tensor(
                    chosen.place, chosen.origin, zero=zero, ref=ref, attr=attr, pinned=pinned, tracked=False
                )
                if DATA in (left.kind, right.kind) or NAME in (left.kind, right.kind):
                    result = carried(result, chosen)
                result = suppositions.beside(frame, result, sides)
                if TENSOR not in (left.kind, right.kind) and not (left.holds_tensors and right.holds_tensors):
                    result = _as_opaque(result, chosen)
        elif UNKNOWN_KIND in (left.kind, right.kind):
            result = UNKNOWN
        left_node, left = target.comparator, right
    return result


def _if_expression(frame: Frame, node: cst.IfExp) -> Value:
    test = evaluate(frame, node.test)
    frame.truth_tested(node.test, test)
    truth = hypothesis.truth(frame, node.test)
    values, ruled_out = [], NOTHING
    for branch, taken in ((node.body, truth is not False), (node.orelse, truth is not True)):
        frame.dead += not taken
        frame.conditional += 1
        value = _evaluate_under(frame, branch, node.test, holds=branch is node.body)
        frame.conditional -= 1
        frame.dead -= not taken
        if taken:
            values.append(value)
        else:
            ruled_out = value
    if len(values) == 1 and values[0].is_device_object and not ruled_out.is_device_object:
        return values[0].but(ref=None)  # `torch.device("cuda") if torch.cuda.is_available() else "cpu"`
    if len(values) == 1:
        # `"cuda" if torch.cuda.is_available() else "cpu"`: the target device, not cuda for good
        return values[0].but(ref="choice") if values[0].text is not None else values[0]
    return branched(values[0], values[1], node.test)


def _evaluate_under(frame: Frame, node: cst.BaseExpression, test: cst.BaseExpression, *, holds: bool) -> Value:
    """The value of an expression that is evaluated only where a test holds, or does not."""
    before = frame.env
    if before is None:
        return evaluate(frame, node)
    frame.env = dict(before)
    narrow(frame, test, holds)
    rounds.forget_start(frame, test, holds)
    narrowed = {key: value for key, value in frame.env.items() if before.get(key) is not value}
    value = evaluate(frame, node)
    for key, told in narrowed.items():  # what the test says ends with the expression, what it binds does not
        if frame.env is not None and frame.env.get(key) is told:
            if key in before:
                frame.env[key] = before[key]
            else:
                del frame.env[key]
    return value


def _walrus(frame: Frame, node: cst.NamedExpr) -> Value:
    value = evaluate(frame, node.value)
    if type(node.target) is cst.Name and frame.env is not None:
        frame.forget(node.target.value)
        frame.env[node.target.value] = value
        frame.values[node.target] = value
    return value


def _elements(frame: Frame, node: cst.Tuple | cst.List | cst.Set) -> list[Value]:
    values = []
    for item in node.elements:
        value = evaluate(frame, item.value)
        if type(item) is cst.StarredElement:
            value = Value(LIST, items=element(value))
        values.append(value)
    return values


def _tuple(frame: Frame, node: cst.Tuple) -> Value:
    values = _elements(frame, node)
    if any(type(item) is cst.StarredElement for item in node.elements):
        return Value(LIST, items=None)
    return Value(TUPLE, items=values)


def _list(frame: Frame, node: cst.List) -> Value:
    values = _elements(frame, node)
    if not values:
        return Value(LIST)
    starred = [type(item) is cst.StarredElement for item in node.elements]
    joined = one_of([element(value) if star else value for value, star in zip(values, starred, strict=True)])
    return Value(LIST, items=joined, ref=tuple(values))


def _set(frame: Frame, node: cst.Set) -> Value:
    _elements(frame, node)
    return UNKNOWN


def _dict(frame: Frame, node: cst.Dict) -> Value:
    items: dict[str, Value] = {}
    for item in node.elements:
        value = evaluate(frame, item.value)
        if type(item) is cst.DictElement:
            evaluate(frame, item.key)
            key = constant_key(item.key)
            if key is None:
                items["*"] = join(items["*"], value) if "*" in items else value
            else:
                items[key] = value
        elif value.kind == DICT:
            # {**batch, **{k: v.to(device) for k, v in batch.items()}}   may set any of those before it
            any_key = value.items.get("*")
            if any_key is not None:
                items = {key: join(known, any_key) for key, known in items.items()}
            items.update(value.items)
        else:
            items["*"] = UNKNOWN
    return Value(DICT, items=items)


def _comprehension(frame: Frame, node: cst.ListComp | cst.GeneratorExp | cst.SetComp | cst.DictComp) -> Value:
    env = frame.env
    frame.env = dict(env) if env is not None else {}
    frame.conditional += 1
    try:
        clause: cst.CompFor | None = node.for_in
        while clause is not None:
            binding.bind(frame, clause.target, element(evaluate(frame, clause.iter)))
            for condition in clause.ifs:
                frame.truth_tested(condition.test, evaluate(frame, condition.test))
            clause = clause.inner_for_in
        if isinstance(node, cst.DictComp):
            evaluate(frame, node.key)
            return Value(DICT, items={"*": evaluate(frame, node.value)})
        elt = evaluate(frame, node.elt)
        if type(node) is cst.SetComp:
            return UNKNOWN
        return Value(LIST, items=elt)
    finally:
        frame.conditional -= 1
        copies.carry(frame, frame.env, env)
        frame.env = env


def _lambda(frame: Frame, node: cst.Lambda) -> Value:
    env = frame.env
    frame.env = dict(env) if env is not None else {}
    for param in (*node.params.posonly_params, *node.params.params, *node.params.kwonly_params):
        if param.default is not None:
            evaluate(frame, param.default)
        frame.env[param.name.value] = UNKNOWN
    for star in (node.params.star_arg, node.params.star_kwarg):
        if isinstance(star, cst.Param):
            frame.env[star.name.value] = UNKNOWN
    frame.conditional += 1
    evaluate(frame, node.body)
    frame.conditional -= 1
    frame.env = env
    return Value(FUNCTION, ref=node)


#: A lambda is followed anew at each call: so deep, and so often in one file.
_LAMBDA_DEPTH, _LAMBDA_CALLS = 4, 2_000


def call_lambda(frame: Frame, node: cst.Lambda, args: Args) -> Value:
    """What calling the lambda with these arguments gives; unknown where lambdas call each other without end."""
    flow = frame.flow
    if node in flow.lambdas or len(flow.lambdas) >= _LAMBDA_DEPTH or flow.lambda_calls >= _LAMBDA_CALLS:
        return UNKNOWN
    flow.lambda_calls += 1
    flow.lambdas.append(node)
    env = frame.env
    given = {}
    for position, param in enumerate((*node.params.posonly_params, *node.params.params, *node.params.kwonly_params)):
        value = args.value(position if param not in node.params.kwonly_params else None, param.name.value)
        if value is None:
            value = evaluate(frame, param.default) if param.default is not None and not args.starred else UNKNOWN
        given[param.name.value] = value
    for star in (node.params.star_arg, node.params.star_kwarg):
        if isinstance(star, cst.Param):
            given[star.name.value] = UNKNOWN
    frame.env = {**(env or {}), **given}
    frame.conditional += 1
    value = evaluate(frame, node.body)
    frame.conditional -= 1
    frame.env = env
    flow.lambdas.pop()
    return value


def _await(frame: Frame, node: cst.Await) -> Value:
    value = evaluate(frame, node.expression)
    copies.may_be_done(frame)
    return value


def _yield(frame: Frame, node: cst.Yield) -> Value:
    if node.value is not None:
        if isinstance(node.value, cst.From):
            frame.returns.append(evaluate(frame, node.value.item))
        else:
            frame.returns.append(Value(LIST, items=evaluate(frame, node.value)))
    copies.may_be_done(frame)
    return UNKNOWN


_HANDLERS: dict[type, Callable[[Frame, Any], Value]] = {
    cst.Name: _name,
    cst.Attribute: _attribute,
    cst.Subscript: _subscript,
    cst.Call: calls.call,
    cst.SimpleString: _string,
    cst.FormattedString: _formatted,
    cst.ConcatenatedString: _concatenated,
    cst.Integer: _number,
    cst.Float: _number,
    cst.Imaginary: _number,
    cst.BinaryOperation: _binary,
    cst.UnaryOperation: _unary,
    cst.BooleanOperation: _boolean,
    cst.Comparison: _comparison,
    cst.IfExp: _if_expression,
    cst.NamedExpr: _walrus,
    cst.Tuple: _tuple,
    cst.List: _list,
    cst.Set: _set,
    cst.Dict: _dict,
    cst.ListComp: _comprehension,
    cst.SetComp: _comprehension,
    cst.DictComp: _comprehension,
    cst.GeneratorExp: _comprehension,
    cst.Lambda: _lambda,
    cst.Await: _await,
    cst.Yield: _yield,
}
