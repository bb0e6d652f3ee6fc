"""What a call gives, and what happens in it.

A call is sorted by what is called: a method of a tensor, of a module, of ``self``; a function of torch by
its table; a function or class of the project by its summary; a builtin.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import libcst as cst

from devlint.flow import arrays, builtins_table, copies, hypothesis
from devlint.flow import torch_table as table
from devlint.flow.facts import BuiltBeforeMove, Copy, Move
from devlint.flow.frame import DEFAULT_PLACE, NO_GRAD, Frame, parameters_in
from devlint.flow.place import HOST, SOMEWHERE, UNKNOWN_PLACE, Place, from_string
from devlint.flow.scope import CONSTRUCTOR, Class, Function
from devlint.flow.value import (
    ANY_DTYPE,
    ARRAY,
    CLASS,
    CONTEXT,
    DATA,
    DEVICE,
    DICT,
    DTYPE,
    FUNCTION,
    GENERATOR,
    HOST_DATA,
    INSTANCE,
    LIST,
    LOADER,
    MODULE,
    NAME,
    NONE,
    NOTHING,
    NUMPY_ARRAY,
    OBJECT,
    OPTIMIZER,
    PARAMS,
    PARTIAL,
    SELF,
    SEVERAL,
    SUPER,
    TENSOR,
    THING,
    TUPLE,
    UNKNOWN,
    UNKNOWN_KIND,
    Built,
    Value,
    element,
    join,
    modules_in,
    tensor,
    without_place,
)


class Args(NamedTuple):
    """A call's arguments, evaluated. ``starred``: some come from ``*xs`` or ``**kw`` and are not known."""

    positional: list[tuple[cst.BaseExpression, Value]]
    keywords: dict[str, tuple[cst.BaseExpression, Value]]
    starred: bool

    def get(self, position: int | None, *names: str) -> tuple[cst.BaseExpression, Value] | None:
        for name in names:
            found = self.keywords.get(name)
            if found is not None:
                return found
        if position is not None and position < len(self.positional):
            return self.positional[position]
        return None

    def value(self, position: int | None, *names: str) -> Value | None:
        found = self.get(position, *names)
        return None if found is None else found[1]

    @property
    def all(self) -> list[tuple[cst.BaseExpression, Value]]:
        return [*self.positional, *self.keywords.values()]


def call(frame: Frame, node: cst.Call) -> Value:
    """Evaluate a call expression."""
    value = _call(frame, node)
    if value.tracked is None and value.holds_tensors and frame.recording is False:
        value = value.but(tracked=False)
    if value.kind == UNKNOWN_KIND and frame.flow.has_copies:
        func = node.func
        if not (type(func) is cst.Attribute and func.attr.value in copies.QUEUEING):
            copies.may_be_done(frame)
    return value


def _call(frame: Frame, node: cst.Call) -> Value:
    from devlint.flow.expressions import attribute, evaluate

    func = node.func
    kind = type(func)
    if kind is cst.Attribute:
        receiver = evaluate(frame, func.value)
        name = func.attr.value
        known = None
        if frame.flow.has_paths:
            key = frame.key(func)
            known = frame.lookup(key) if key is not None else None
        if known is not None:
            frame.values[func] = known
            return call_value(frame, node, known, arguments(frame, node))
        if receiver.kind == NAME:
            value = attribute(frame, func, receiver, name)
            frame.values[func] = value
            if value.kind == NAME:
                return named_call(frame, node, value.ref, arguments(frame, node))
            return call_value(frame, node, value, arguments(frame, node))
        return method_call(frame, node, func, receiver, name)
    if kind is cst.Name:
        name = func.value
        value = frame.lookup(name)
        if value is None:
            qualified = frame.scope.imports.get(name)
            if qualified is not None:
                return named_call(frame, node, qualified, arguments(frame, node))
            if name == "reveal_device" and node.args:
                shown = evaluate(frame, node.args[0].value)
                frame.facts.reveals[node] = shown
                return shown
            if name == "super":
                return Value(SUPER, frame.self_place, ref=frame.cls)
            return builtins_table.call(frame, node, name, arguments(frame, node))
        frame.values[func] = value
        return call_value(frame, node, value, arguments(frame, node))
    return call_value(frame, node, evaluate(frame, func), arguments(frame, node))


def arguments(frame: Frame, node: cst.Call) -> Args:
    from devlint.flow.expressions import evaluate

    positional: list[tuple[cst.BaseExpression, Value]] = []
    keywords: dict[str, tuple[cst.BaseExpression, Value]] = {}
    starred = False
    for arg in node.args:
        value = evaluate(frame, arg.value)
        if arg.star == "*":
            if value.kind == TUPLE:
                positional += [(arg.value, item) for item in value.items]
            else:
                starred = True
                positional.append((arg.value, element(value) if value.kind in (LIST, THING) else UNKNOWN))
        elif arg.star:
            starred = True
            if value.kind == DICT:
                for key, item in value.items.items():
                    keywords.setdefault(key, (arg.value, item))
        elif arg.keyword is not None:
            keywords[arg.keyword.value] = (arg.value, value)
        else:
            positional.append((arg.value, value))
    return Args(positional, keywords, starred)


def call_value(frame: Frame, node: cst.Call, value: Value, args: Args) -> Value:
    """Call what an expression turned out to be."""
    kind = value.kind
    if kind == NAME:
        return named_call(frame, node, value.ref, args)
    if kind == FUNCTION:
        if isinstance(value.ref, Function):
            return project_call(frame, node, value.ref, args, receiver=value.items)
        from devlint.flow.expressions import call_lambda

        return call_lambda(frame, value.ref, args)
    if kind == PARTIAL:
        first: Args = value.items
        keywords = {**first.keywords, **args.keywords}
        joined = Args(first.positional + args.positional, keywords, first.starred or args.starred)
        return call_value(frame, node, value.ref, joined)
    if kind == CLASS:
        return construct(frame, node, value.ref, args)
    if kind == MODULE:
        return module_call(frame, node, value, args)
    if kind == SELF:
        return call_self(frame, node, value, args)
    if kind == THING:
        # something moved by `.to()` that is called: a module, or a pipeline, which may give arrays and images
        called = frame.key(node.func) or ""
        is_module = hypothesis.MODEL_NAME.match(called.rpartition(".")[2]) or (
            any(_has_tensors(frame.values.get(arg.value, UNKNOWN)) for arg in node.args)
            and not hypothesis.PIPELINE_NAME.search(called)
        )
        return Value(THING, value.place, node) if is_module else UNKNOWN
    if kind == INSTANCE and value.ref is not None:
        method = value.ref.find_method("__call__")
        if method is not None:
            return project_call(frame, node, method, args, receiver=value)
    return unknown_call(frame, node, args)


def _has_tensors(value: Value) -> bool:
    """A tensor, or a container of some."""
    if value.kind == DICT:
        return any(item.holds_tensors for item in value.items.values())
    return value.holds_tensors or (value.kind in (LIST, TUPLE) and element(value).holds_tensors)


def unknown_call(frame: Frame, node: cst.Call, args: Args) -> Value:
    """A call of something that cannot be followed."""
    for operand, value in args.all:
        escape(frame, node, operand, value)
    name = node.func.attr.value if isinstance(node.func, cst.Attribute) else getattr(node.func, "value", "")
    if isinstance(name, str) and hypothesis.LOSS_NAME.search(name):
        # `criterion(model(x), y)`: what is computed from tensors that are there is there
        operands = [value for _, value in args.positional if value.holds_tensors]
        if operands and all(value.place.is_there for value in operands):
            return Value(THING, operands[0].place, node)
    return UNKNOWN


def call_self(frame: Frame, node: cst.Call, value: Value, args: Args) -> Value:
    """``self(x)``: a module's ``forward``."""
    cls = value.ref
    method = cls.find_method("forward" if cls.is_module else "__call__") if cls is not None else None
    result = project_call(frame, node, method, args, receiver=value) if method is not None else UNKNOWN
    if result.kind == UNKNOWN_KIND and cls is not None and cls.is_module:
        return Value(THING, value.place, node, ref="output")
    return result


# names of other packages --------------------------------------------------------------------------


def named_call(frame: Frame, node: cst.Call, name: str, args: Args) -> Value:
    """Call a function or class by its qualified name."""
    if not frame.dead:
        frame.facts.calls.setdefault(name, []).append(node)
        frame.facts.names[node] = name
    if name.startswith("torch."):
        return torch_call(frame, node, name, args)
    if name.startswith("numpy."):
        return arrays.numpy_call(frame, node, name, args)
    if name == "functools.partial" and args.positional:
        return Value(PARTIAL, ref=args.positional[0][1], items=args._replace(positional=args.positional[1:]))
    if name in ("copy.deepcopy", "copy.copy"):
        value = args.value(0) or UNKNOWN
        return value.but(obj=node) if value.kind == MODULE else value
    if name.rpartition(".")[2] in ("tqdm", "trange", "track") or name in ("itertools.cycle",):
        return args.value(0, "iterable") or HOST_DATA
    if name == "itertools.islice":
        return args.value(0) or UNKNOWN
    if name == "itertools.chain":
        found = [v for _, v in args.positional]
        return found[0] if len(found) == 1 else Value(TUPLE, items=found)
    if name.startswith(("math.", "random.", "os.", "time.", "json.", "re.", "collections.OrderedDict", "pathlib.")):
        if name.startswith("math."):
            for operand, value in args.positional:
                if value.kind == TENSOR:
                    frame.wait(node, name, operand, value, explicit=False)
        return HOST_DATA if not name.startswith("collections.") else UNKNOWN
    if name in table.LOADERS:
        return loader(frame, node, name, args)
    found = arrays.library_call(frame, node, name, args)
    if found is not None:
        return found
    if name.startswith("torchvision.models.") or name.startswith("timm.create_model"):
        return Value(MODULE, HOST, node, ref=name, obj=node)
    if name == "accelerate.Accelerator":
        return Value(INSTANCE, ref=None, text="accelerator")
    if name.startswith("torchmetrics."):
        return UNKNOWN
    function = frame.scope.function_names.get(name)
    if function is not None:
        return project_call(frame, node, function, args, receiver=None)
    return unknown_call(frame, node, args)


def _array_result(kind: str, name: str) -> Value:
    return NUMPY_ARRAY if kind == ARRAY and name not in ("item", "tolist") else HOST_DATA


def torch_call(frame: Frame, node: cst.Call, name: str, args: Args) -> Value:
    """A function or class of torch, by the tables."""
    factory = table.FACTORIES.get(name)
    if factory is not None:
        return make(frame, node, name, factory, args)
    operation = table.FUNCTIONS.get(name)
    if operation is not None:
        return operate_function(frame, node, name, operation, args)
    fact = table.MODULES.get(name)
    if fact is not None:
        return construct_module(frame, node, name, fact, args)
    if name in table.LIKE:
        given = args.get(None, "device")
        first = args.value(0, "input") or UNKNOWN
        place = frame.device_place(given[1], given[0]) if given is not None and given[1].kind != NONE else first.place
        pinned = False if place.is_host and args.get(None, "pin_memory") is None else None
        return tensor(place, node, zero=first.zero, pinned=pinned, tracked=_asked_to_track(args))
    if name in table.KEEPING:
        return keep(frame, node, args)
    factory = table.HOST_FACTORIES.get(name)
    if factory is not None:
        if frame.flow.default_type_set:
            return tensor(UNKNOWN_PLACE, node)
        place = HOST
        first = args.value(0)
        if first is not None and first.holds_tensors and first.place.is_there:
            place = first.place if name != "torch.from_numpy" else UNKNOWN_PLACE  # then it is no tensor
        return tensor(place, node, pinned=False, tracked=False)
    if name in table.DEVICE_TYPED:
        return tensor(Place("fixed", "cuda"), node)
    if name in table.WRAPPERS:
        return wrap(node, name, args)
    if name in table.OPTIMIZERS:
        return optimizer(frame, node, name, args)
    if name in table.LOADERS:
        return loader(frame, node, name, args)
    if name in table.DATASETS:
        chosen = frame.meet(node, args.positional, "a dataset") if "TensorDataset" in name else None
        return Value(THING, chosen.place, chosen.origin, ref="dataset") if chosen is not None else UNKNOWN
    return _torch_rest(frame, node, name, args)


def _torch_rest(frame: Frame, node: cst.Call, name: str, args: Args) -> Value:
    tail = name.rpartition(".")[2]
    if name == "torch.device":
        given = args.get(0, "type", "device")
        place = frame.device_place(given[1], given[0]) if given is not None else UNKNOWN_PLACE
        index = args.get(1, "index")
        if index is not None and place.kind == "fixed" and ":" not in place.name and index[1].kind != NONE:
            number = index[0].value if isinstance(index[0], cst.Integer) else ""
            place = Place("fixed", f"{place.name}:{number}") if number else SOMEWHERE
        return Value(DEVICE, place if place.is_known else SOMEWHERE, node, ref=OBJECT)
    if name in ("torch.no_grad", "torch.inference_mode", "torch.enable_grad"):
        return Value(CONTEXT, ref=name)
    if name == "torch.set_grad_enabled":
        given = args.get(0, "mode")
        if frame.env is not None and given is not None:  # at once, whether or not it is used in a `with`
            frame.env[NO_GRAD] = HOST_DATA if _is_false(given[0]) else UNKNOWN
        return Value(CONTEXT, ref=name)
    if name == "torch.save" and args.positional:
        copies.read(frame, node, args.positional[0][1])
    if name.endswith(".autocast") or name.startswith("torch.cuda.amp"):
        return Value(CONTEXT, ref=name)
    if name in ("torch.cuda.device", "torch.cuda.stream", "torch.cuda.device_of", "torch.profiler.profile"):
        return Value(CONTEXT, ref=name)
    if name == "torch.get_default_device":
        return Value(DEVICE, frame.default_place(), node)
    if name == "torch.set_default_device":
        given = args.get(0, "device")
        place = frame.device_place(given[1], given[0]) if given is not None else UNKNOWN_PLACE
        if frame.env is not None and not frame.dead:
            frame.env[DEFAULT_PLACE] = Value(DEVICE, place)
        return NOTHING
    if name == "torch.accelerator.current_accelerator":
        return Value(DEVICE, SOMEWHERE, node, ref=OBJECT)
    if name == "torch.Generator":
        given = args.get(0, "device")
        return Value(GENERATOR, frame.device_place(given[1], given[0]) if given is not None else HOST, node)
    if name == "torch.manual_seed":
        return Value(GENERATOR, HOST, node)
    if name in ("torch.load", "torch.hub.load_state_dict_from_url"):
        given = args.get(1 if name == "torch.load" else None, "map_location")
        if given is None:
            return UNKNOWN
        place = frame.device_place(given[1], given[0])
        return Value(THING, place, node, ref="moved") if place.is_known else UNKNOWN
    if name in ("torch.cuda.is_available", "torch.is_grad_enabled", "torch.get_default_dtype", "torch.get_rng_state"):
        return HOST_DATA if tail != "get_default_dtype" else ANY_DTYPE
    if name.startswith("torch.distributions.") and name in table.DISTRIBUTIONS:
        chosen = frame.meet(node, args.all, "a distribution")
        return Value(INSTANCE, chosen.place if chosen is not None else UNKNOWN_PLACE, node, text="distribution")
    if name in ("torch.nn.parallel.DataParallel", "torch.nn.DataParallel") or tail in (
        "DistributedDataParallel",
        "FullyShardedDataParallel",
    ):
        return _wrapped(args, node)
    if name in ("torch.compile", "torch.jit.script", "torch.jit.trace", "torch.quantization.QuantWrapper"):
        return args.value(0, "model") or UNKNOWN
    if name.startswith("torch.cuda."):
        return HOST_DATA if tail in ("device_count", "memory_allocated", "max_memory_allocated") else UNKNOWN
    if tail in _DTYPE_FUNCTIONS:
        return HOST_DATA
    return UNKNOWN


_DTYPE_FUNCTIONS = frozenset({"Size", "finfo", "iinfo", "is_tensor"})


def _wrapped(args: Args, node: cst.Call) -> Value:
    """DataParallel and its kin: the module they wrap, behind a call that moves its inputs."""
    inner = args.value(0, "module") or UNKNOWN
    return Value(MODULE, inner.place, node, obj=inner.obj or node, text="moves its inputs")


def make(frame: Frame, node: cst.Call, name: str, factory: table.Factory, args: Args) -> Value:
    """A factory that obeys ``device=``."""
    given = args.get(None, "device")
    if given is not None and given[1].kind != NONE:
        place = frame.device_place(given[1], given[0])
    elif args.starred and any(not isinstance(a.keyword, cst.Name) and a.star == "**" for a in node.args):
        place = UNKNOWN_PLACE  # device may be in **kwargs
    elif name == "torch.normal" and (first := args.value(0, "mean")) is not None and first.holds_tensors:
        place = first.place
    elif name in table.IGNORE_DEFAULT and not frame.flow.default_type_set:
        place = HOST
    else:
        out = args.value(None, "out")
        place = frame.default_place() if out is None else out.place
    data = args.value(0, "data")
    zero: bool | None = factory.rank == "zero"
    if factory.rank == "scalar_if_number":
        zero = _data_is_number(args, data)
        if data is not None and data.kind == TENSOR and given is None:
            place, zero = data.place, data.zero
        elif data is not None and data.kind == LIST and data.items is not None and data.items.kind == TENSOR:
            first_node = args.positional[0][0] if args.positional else node
            frame.wait(node, "tensor from device scalars", first_node, data.items, explicit=False)
    elif factory.rank == "sized" and name in (
        "torch.full",
        "torch.zeros",
        "torch.ones",
        "torch.empty",
        "torch.rand",
        "torch.randn",
    ):
        size = args.get(0, "size")
        zero = size is not None and isinstance(size[0], cst.Tuple | cst.List) and not size[0].elements
    pinned_by = args.get(None, "pin_memory")
    pinned = False if pinned_by is None else True if _is_true(pinned_by[0]) else None
    grad = (asked := args.get(None, "requires_grad")) is not None and _is_true(asked[0])
    for operand, value in args.all:
        if value.kind == TENSOR and value.place.is_there and name != "torch.tensor" and operand is not node:
            # sizes and bounds are read to the host
            frame.wait(node, name, operand, value, explicit=False)
    return tensor(place, node, zero=zero, pinned=pinned, grad=grad, tracked=_asked_to_track(args))


def _asked_to_track(args: Args) -> bool | None:
    """Whether autograd tracks what a factory makes."""
    asked = args.get(None, "requires_grad")
    if asked is None:
        return None if args.starred else False
    return True if _is_true(asked[0]) else False if _is_false(asked[0]) else None


def _data_is_number(args: Args, data: Value | None) -> bool | None:
    """Whether ``torch.tensor(data)`` is zero-dimensional; ``None`` where data may be a number or a list."""
    if data is None:
        return None
    if _is_number(args, data):
        return True
    return False if data.kind in (LIST, TUPLE) else None


def _is_number(args: Args, data: Value) -> bool:
    node = args.positional[0][0] if args.positional else args.keywords["data"][0]
    if isinstance(node, cst.Integer | cst.Float):
        return True
    if isinstance(node, cst.UnaryOperation):
        return isinstance(node.expression, cst.Integer | cst.Float)
    if isinstance(node, cst.Name) and node.value in ("True", "False"):
        return True
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Name):
        return node.func.value in ("float", "int", "len", "bool")
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        return node.func.attr.value == "item"
    return data.text == "number"


def _is_true(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Name) and node.value == "True"


def keep(frame: Frame, node: cst.Call, args: Args) -> Value:
    """``as_tensor`` and ``asarray``: a tensor stays where it is unless ``device=`` is given."""
    given = args.get(None, "device")
    data = args.value(0, "data", "obj") or UNKNOWN
    if given is not None and given[1].kind != NONE:
        return tensor(frame.device_place(given[1], given[0]), node, tracked=False if data.is_data else data.tracked)
    if data.holds_tensors:
        return tensor(frame.default_place(), node) if frame.redirected else data
    if data.kind in (DATA, ARRAY, LIST, TUPLE):
        items = element(data)
        if items.holds_tensors:
            return tensor(UNKNOWN_PLACE, node)
        return tensor(frame.default_place(), node, zero=_data_is_number(args, data), pinned=False, tracked=False)
    return tensor(UNKNOWN_PLACE, node)


def wrap(node: cst.Call, name: str, args: Args) -> Value:
    value = args.value(0, "data") or UNKNOWN
    is_parameter = name.endswith("Parameter")
    asked = args.get(None if name.endswith("Variable") else 1, "requires_grad")
    grad = is_parameter and (asked is None or _is_true(asked[0]))
    tracked = True if grad else False if asked is not None and _is_false(asked[0]) else None
    if value.kind == TENSOR:
        return value.but(
            grad=grad,
            tracked=tracked,
            ref="parameter" if is_parameter else "buffer" if name.endswith("Buffer") else None,
        )
    ref = "buffer" if name.endswith("Buffer") else "parameter"
    return tensor(value.place if value.kind == THING else UNKNOWN_PLACE, node, grad=grad, tracked=tracked, ref=ref)


def _zero_by(operation: table.Op, args: Args, positional_before: int, operands_zero: bool | None) -> bool | None:
    reduces = operation.reduces
    if reduces == "always":
        return True
    if reduces in ("no_dim", "no_dim_third"):
        if any(k in args.keywords for k in ("dim", "axis", "keepdim")) or args.starred:
            return None if args.starred else False
        allowed = positional_before + (1 if reduces == "no_dim_third" else 0)
        return len(args.positional) <= allowed
    if reduces == "loss":
        reduction = args.value(None, "reduction")
        if reduction is None or reduction.text in ("mean", "sum", "batchmean"):
            return True
        return False if reduction.text == "none" else None
    if reduces == "adds":
        return False
    return operands_zero if reduces == "never" else None


def operate_function(frame: Frame, node: cst.Call, name: str, operation: table.Op, args: Args) -> Value:
    operands = _operands(operation, args)
    if "use_separate_proj_weight" in args.keywords and len(operands) > 5:
        del operands[5]  # F.multi_head_attention_forward(q, k, v, ..., torch.empty([0]), ...): handed in, not looked at
    if name.rpartition(".")[2] not in _SAME_MEMORY and operation.result not in ("host", "none"):
        for _, value in operands:
            copies.read(frame, node, value)
    if name in table.WAIT_FUNCTIONS and operands and _waits(name.rpartition(".")[2], args, 1):
        frame.wait(node, name, operands[0][0], operands[0][1], explicit=False)
    out = args.value(None, "out")
    if operation.operands == "none" and operation.result == "tensor":
        return _copied_together(node, args)
    chosen = frame.meet(node, operands, f"`{name}`", strict=operation.strict)
    result = _result(frame, node, operation, chosen, args, 1, operands, out)
    if name == "torch.reshape" and _gives_sizes(args._replace(positional=args.positional[1:])):
        return result.but(zero=False)
    return result


_SAME_MEMORY = table.VIEWS | table.VIEWS_OR_COPIES


def _operands(operation: table.Op, args: Args) -> list[tuple[cst.CSTNode, Value]]:
    kind = operation.operands
    if kind == "all":
        return [*args.positional, *args.keywords.values()]
    if kind in ("first", "index"):
        first = args.get(0, "input", "self", "x")
        return [first] if first is not None else []
    if kind == "sequence":
        found: list[tuple[cst.CSTNode, Value]] = []
        for operand, value in args.positional or list(args.keywords.values())[:1]:
            if value.kind == TUPLE:
                found += _elements_of(operand, value)
            elif value.kind == LIST:
                if isinstance(value.ref, tuple):
                    found += _elements_of(operand, Value(TUPLE, items=list(value.ref)))
                elif value.items is not None:
                    found.append((operand, value.items))
            else:
                found.append((operand, value))
        return found
    return []


def _copied_together(node: cst.Call, args: Args) -> Value:
    """``pad_sequence``: tensors from anywhere are copied into one that lives where the first does."""
    first = args.value(0)
    each = element(first) if first is not None and first.kind in (LIST, TUPLE) else first
    if each is not None and each.holds_tensors:
        return tensor(each.place, each.origin, pinned=False if each.place.is_host else None)
    return tensor(UNKNOWN_PLACE, node)


def _elements_of(node: cst.CSTNode, value: Value) -> list[tuple[cst.CSTNode, Value]]:
    if isinstance(node, cst.Tuple | cst.List) and len(node.elements) == len(value.items):
        return [(item.value, v) for item, v in zip(node.elements, value.items, strict=True)]
    return [(node, v) for v in value.items]


def _pinned_result(name: str, place: Place, pinned: bool | None) -> bool | None:
    """Whether what the operation ``name`` gives is page-locked, where its first operand is or not."""
    if not place.is_host:
        return None
    if name in table.VIEWS:
        return pinned
    if name in table.VIEWS_OR_COPIES:
        return False if pinned is False else None
    return False  # new memory, which torch does not pin


def _result(
    frame: Frame,
    node: cst.Call,
    operation: table.Op,
    chosen: Value | None,
    args: Args,
    positional_before: int,
    operands: list[tuple[cst.CSTNode, Value]],
    out: Value | None = None,
) -> Value:
    if operation.result == "host":
        return HOST_DATA
    if operation.result == "none":
        return NOTHING
    if chosen is None:
        if operation.result == "tuple":
            return UNKNOWN
        return tensor(UNKNOWN_PLACE, node) if operation.operands != "none" else UNKNOWN
    if chosen.kind == MODULE:
        return UNKNOWN
    ranks = [v.zero for _, v in operands if v.holds_tensors]
    zeros = False if False in ranks else None if None in ranks else True
    zero = _zero_by(operation, args, positional_before, zeros)
    place = chosen.place
    if operation.operands == "all" and chosen.zero and any(v.kind == UNKNOWN_KIND for _, v in operands):
        place, zero = UNKNOWN_PLACE, None
    tail = node.func.attr.value if isinstance(node.func, cst.Attribute) else ""
    tracked = False if tail in table.UNTRACKED else frame.tracked(v for _, v in operands)
    pinned = _pinned_result(tail, place, chosen.pinned)
    value = tensor(place, chosen.origin, zero=zero, attr=chosen.attr, pinned=pinned, tracked=tracked)
    if operation.result == "tuple":
        if operation.reduces == "no_dim" and zero:
            return value
        return Value(THING, place, chosen.origin, zero=zero, tracked=tracked)
    return value


def _waits(tail: str, args: Args, offset: int) -> bool:
    """The conditions under which a function of the table waits."""
    if tail == "where":
        return len(args.positional) + len(args.keywords) == 1
    if tail == "one_hot":
        return len(args.positional) < offset + 1 and "num_classes" not in args.keywords
    if tail == "repeat_interleave":
        repeats = args.value(offset, "repeats")
        return repeats is not None and repeats.kind == TENSOR and "output_size" not in args.keywords
    if tail == "multinomial":
        replacement = args.get(offset + 1, "replacement")
        return replacement is None or not _is_true(replacement[0])
    return True


# modules, optimizers, loaders ---------------------------------------------------------------------


def construct_module(frame: Frame, node: cst.Call, name: str, fact: table.ModuleFact, args: Args) -> Value:
    given = args.get(None, "device")
    place = HOST
    if given is not None and given[1].kind != NONE:
        place = frame.device_place(given[1], given[0])
    elif args.starred:
        place = UNKNOWN_PLACE
    elif fact.kind != "container":
        place = frame.default_place()
    if name in ("torch.nn.DataParallel", "torch.nn.parallel.DistributedDataParallel"):
        return _wrapped(args, node)
    held: Value | None = None
    if fact.kind == "container":
        for _, value in args.all:
            item = element(value) if value.kind in (LIST, TUPLE) else value
            held = item if held is None else join(held, item)
        if held is not None and held.kind == MODULE:
            place = held.place
            held = held if held.ref is not None else None
        else:
            held = None
    tensors = fact.tensors
    if tensors == "argument":
        given_tensors = [v for _, v in args.all if v.kind in (TENSOR, THING)]
        if given_tensors:
            place = given_tensors[0].place
    _put_in(frame, node, args)
    holds = fact.tensors == "always" or any(_holds(v) for _, v in args.all)
    return Value(MODULE, place, node, ref=name, obj=node, items=held, holds=holds)


def _put_in(frame: Frame, node: cst.Call, args: Args) -> None:
    """Remember which modules a new one is made of: they move together."""
    inside = {module.obj for _, value in args.all for module in modules_in(value)} - {None}
    if inside:
        frame.flow.parts.setdefault(node, set()).update(inside)


def _holds(value: Value) -> bool:
    """A module with parameters, or a list with one in it."""
    if value.kind == LIST and isinstance(value.ref, tuple):
        return any(_holds(item) for item in value.ref)
    return value.kind == MODULE and value.holds


def optimizer(frame: Frame, node: cst.Call, name: str, args: Args) -> Value:
    first = args.value(0, "params") or UNKNOWN
    # a module's own parameters are on the host while its constructor has not moved it
    modules = tuple(
        p.obj
        for p in parameters_in(first)
        if p.obj is not None and (p.place.is_host or (isinstance(p.obj, Class) and not p.place.is_there))
    )
    if not modules or frame.dead:
        return Value(OPTIMIZER, UNKNOWN_PLACE, node, items=())
    state = ("built", node) if name in table.EAGER_STATE else None
    return Value(OPTIMIZER, UNKNOWN_PLACE, node, items=(Built(node, modules, state),))


def optimizer_method(
    frame: Frame, node: cst.Call, func: cst.Attribute, receiver: Value, name: str, args: Args
) -> Value:
    """``step`` and ``load_state_dict`` give an optimizer state, which lives where the parameters are then."""
    key = frame.key(func.value)
    if (
        name in ("step", "load_state_dict")
        and receiver.items
        and key is not None
        and frame.env is not None
        and not frame.dead
    ):
        how = "stepped" if name == "step" else "loaded"
        built = []
        for each in receiver.items:
            if each.moved is None:
                stateless = frame.facts.names.get(each.call) == "torch.optim.SGD" and not _has_momentum(each.call)
                if each.state is None and not stateless:
                    each = each._replace(state=(how, node))
            elif how == "loaded" and not frame.conditional:
                frame.facts.built_before_move[each.call].state = None  # replaced, where the module is now
            built.append(each)
        frame.env[key] = receiver.but(items=tuple(built))
    return UNKNOWN


def _has_momentum(sgd: cst.Call) -> bool:
    return len(sgd.args) > 2 or any(
        arg.star or (arg.keyword is not None and arg.keyword.value == "momentum") for arg in sgd.args
    )


def loader(frame: Frame, node: cst.Call, name: str, args: Args) -> Value:
    pin = args.get(7, "pin_memory")
    if pin is not None:
        # pin_memory=torch.cuda.is_available()
        pinned = True if hypothesis.truth(frame, pin[0]) else False if _is_false(pin[0]) else None
    else:
        pinned = None if args.starred else False
    dataset = args.value(0, "dataset")
    place = HOST
    if dataset is not None and dataset.kind == THING and dataset.ref == "dataset":
        place = dataset.place
    elif dataset is not None and dataset.kind == THING:
        place = UNKNOWN_PLACE
    if args.get(None, "collate_fn") is not None and place == HOST:
        collate = args.value(None, "collate_fn")
        if collate is None or collate.kind != FUNCTION:
            place = HOST if pinned is not None else UNKNOWN_PLACE
    if name.startswith("torch_geometric."):
        pinned = None  # their batches are objects
    collate = args.value(6, "collate_fn")
    if pinned is not None and collate is not None and collate.kind != NONE:
        pinned = _pinned_after(frame, node, collate, pinned)
    return Value(LOADER, place, node, pinned=pinned)


def _pinned_after(frame: Frame, node: cst.Call, collate: Value, pinned: bool) -> bool | None:
    """Whether batches that a collate function makes are pinned: a loader pins tensors, not what it does not know."""
    samples = Args([(node, Value(LIST, items=UNKNOWN))], {}, False)
    todo = [call_value(frame, node, collate, samples) if collate.kind == FUNCTION else UNKNOWN]
    for value in todo:
        if value.kind in (LIST, TUPLE, DICT):
            items = value.items if value.items is not None else []
            todo += items.values() if isinstance(items, dict) else items if isinstance(items, list) else [items]
        elif value.kind == TENSOR and value.place.is_host:
            if value.pinned is not False and not pinned:
                return None  # pinned by the function itself
        elif not value.is_data and (pinned or value.kind not in (UNKNOWN_KIND, THING) or value is todo[0]):
            return None  # an object of theirs; what is one entry of many is left as it is where nothing pins
    return pinned


def _is_false(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Name) and node.value == "False"


def module_call(frame: Frame, node: cst.Call, module: Value, args: Args) -> Value:
    """``model(x)``."""
    operands = [*args.positional, *args.keywords.values()]
    reference = module.ref
    if not (isinstance(reference, str) and reference in table.MODULES):
        copies.may_be_done(frame)
    if isinstance(reference, str):
        fact = table.MODULES.get(reference)
        holds = module.holds
        first = [pair for pair in args.positional[:1] if pair[1].holds_tensors]
        if fact is not None and fact.kind == "loss":
            chosen = frame.meet(node, operands, f"`{reference}`", strict=False)
            if chosen is None:
                return Value(THING, UNKNOWN_PLACE, node)
            return tensor(chosen.place, chosen.origin, zero=True)
        if holds:
            # masks and states must be there as well as the input; what a container hands on is for its parts to say
            fed = operands if fact is not None and fact.kind in ("layer", "recurrent") else first
            frame.meet(node, [(node.func, module), *fed], f"`{reference}`", strict=True)
        elif module.place.is_there or not first:
            pass
        else:
            return Value(THING, first[0][1].place, node)
        if fact is not None and fact.kind == "layer" and reference not in _TUPLE_LAYERS:
            return tensor(_output_place(module, first), node)
        if fact is not None and fact.kind == "recurrent":
            return Value(THING, _output_place(module, first), node)
    elif isinstance(reference, Class):
        forward = reference.find_method("forward")
        if forward is not None:
            given = project_call(frame, node, forward, args, receiver=module)
            if given.kind in (TENSOR, THING) and given.place.is_known:
                return given
            if given.kind in (TUPLE, DICT, LIST):
                return given
        if forward is not None or any(not isinstance(c, str) and c.find_method("forward") for c in reference.lineage):
            return _module_output(module, operands, node)
    if module.place.is_there and module.text is None and not frame.scope.wraps_models:
        # a module of unknown make that was moved; sequence lengths stay on the host for packing
        for operand, value in operands:
            if value.kind == TENSOR and value.place.is_host and not _is_length(frame.key(operand)):
                frame.met(node, "a call of the module", (operand, value), (node.func, module))
    return _module_output(module, operands, node)


def _is_length(key: str | None) -> bool:
    return key is not None and "len" in key


def _module_output(module: Value, operands: list[tuple[cst.BaseExpression, Value]], node: cst.Call) -> Value:
    place = module.place
    if not place.is_known:
        known = [v.place for _, v in operands if v.holds_tensors and v.place.is_there]
        place = known[0] if known else place
    return Value(THING, place, node, ref="output")


_TUPLE_LAYERS = frozenset({"torch.nn.MultiheadAttention"})


def _output_place(module: Value, first: list[tuple[cst.BaseExpression, Value]]) -> Place:
    if module.place.is_there or not first:
        return module.place
    place = first[0][1].place
    return place if place.is_there else module.place if module.place.is_known else place


def construct(frame: Frame, node: cst.Call, cls: Class, args: Args) -> Value:
    """``Net(...)`` of the project."""
    init = cls.find_method("__init__")
    if init is not None:
        _hint(init, _given(node, init, args, Value(SELF, ref=cls)))
    frame.flow.evaluate_class(cls)
    if not cls.is_module:
        return Value(INSTANCE, UNKNOWN_PLACE, node, ref=cls, obj=node)
    _put_in(frame, node, args)
    place = frame.default_place()
    constructors = [method for c in cls.lineage if (method := c.methods.get("__init__")) is not None]
    # parameters made on a device that the constructor is told, or chooses, and parts that are elsewhere
    if args.starred or any(method.device_aware or "to" in method.attributes.get("self", ()) for method in constructors):
        place = UNKNOWN_PLACE
    elif any(
        v.place != HOST for c in cls.lineage for v in c.attrs.values() if v.kind == MODULE or v.ref == "parameter"
    ):
        place = UNKNOWN_PLACE
    return Value(MODULE, place, node, ref=cls, obj=node)


# functions of the project -------------------------------------------------------------------------


def project_call(frame: Frame, node: cst.Call, function: Function, args: Args, receiver: Value | None) -> Value:
    """Call a function of the file through its summary, its places replaced by those of the arguments."""
    copies.may_be_done(frame)
    if receiver is None and function.takes_self and not function.is_classmethod and args.positional:
        receiver, args = args.positional[0][1], args._replace(positional=args.positional[1:])  # Net.forward(net, x)
    given = _given(node, function, args, receiver)
    _hint(function, given)
    summary = frame.flow.summary(function, frame)
    if summary is None or function.is_replaced:
        return unknown_call(frame, node, args)
    places: dict[tuple[str, int], Place] = {}
    for param in function.params:
        name = param.name.value
        pair = given.get(name)
        places[(name, function.scope)] = _argument_place(frame, pair, param, args, name in summary.tensors)
        if pair is None or pair[1].kind in (TENSOR, THING, MODULE):
            places[(f"{name}.device", function.scope)] = places[(name, function.scope)]
    for name, place in summary.moved.items():
        if name in given:
            place = places.get((place.name, place.scope), place)
            leave_moved(frame, node, *given[name], place)
    if receiver is not None and function.cls is not None:
        at = receiver.place
        for cls in [function.cls, *(receiver.ref.lineage if isinstance(receiver.ref, Class) else ())]:
            places[("self", cls.scope)] = at
        given["self"] = (node.func, Value(MODULE, at, receiver.origin))
    for first_node, second_node, first, second in summary.constraints:
        a, b = places.get((first.name, first.scope)), places.get((second.name, second.scope))
        if a is None or b is None:
            continue
        for host_name, host, there_name, there in ((first.name, a, second.name, b), (second.name, b, first.name, a)):
            if host.is_host and there.is_there and host_name in given and there_name in given and host_name != "self":
                operand = given[host_name]
                if operand[1].holds_tensors and operand[1].zero is False:
                    frame.met(node, f"`{function.name}`", operand, given[there_name])
    returned = substitute(summary.returns, places)
    redirected = frame.env is not None and DEFAULT_PLACE in frame.env  # what it makes is made there
    if (summary.captured and frame.stale(summary.captured)) or (redirected and not returned.place.is_there):
        returned = without_place(returned)
    if returned.kind == MODULE and returned.obj is not None:
        # the argument that is handed back, or what each call makes anew
        handed_in = {param: given[param.name.value][1].obj for param in function.params if param.name.value in given}
        returned = returned.but(obj=handed_in.get(returned.obj, node))
    return returned if returned.kind != UNKNOWN_KIND else UNKNOWN


def _given(
    node: cst.Call, function: Function, args: Args, receiver: Value | None
) -> dict[str, tuple[cst.BaseExpression, Value]]:
    """The arguments by the names of the parameters they are for."""
    params = function.positional
    if function.takes_self and params and (receiver is not None or function.is_classmethod):
        params = params[1:]
    positional = args.positional
    if args.starred:  # behind `*xs` nobody knows which parameter comes next
        stars = [position for position, arg in enumerate(node.args) if arg.star == "*"]
        positional = positional[: stars[0] + 1] if stars else positional
    given = {param.name.value: pair for param, pair in zip(params, positional, strict=False)}
    given.update(args.keywords)
    return given


def _hint(function: Function, given: dict[str, tuple[cst.BaseExpression, Value]]) -> None:
    """Callers tell what parameters are that nothing else tells."""
    for name, (_, value) in given.items():
        if value.kind == LOADER and value.place.is_host:
            function.loaders[name] = join(function.loaders.get(name, value), value)
    hints = {
        name: "elsewhere" if v.place.is_host else "there"
        for name, (_, v) in given.items()
        if v.kind == TENSOR or _is_output(v)
    }
    if not hints:
        return
    todo = [function]
    if function.cls is not None:
        todo += [m for c in function.cls.subclasses if (m := c.methods.get(function.name)) is not None]
    for each in todo:
        for name, where in hints.items():
            each.hints[name] = where if each.hints.get(name, where) == where else "elsewhere"


def _is_output(value: Value) -> bool:
    return value.kind == THING and isinstance(value.origin, cst.Param)


def _argument_place(
    frame: Frame, pair: tuple[cst.BaseExpression, Value] | None, param: cst.Param, args: Args, is_tensor: bool
) -> Place:
    if pair is not None:
        value = pair[1]
        if is_tensor and not value.holds_tensors:
            return UNKNOWN_PLACE  # a number, say: where the result lives is for others to tell
        if value.kind in (DEVICE, DATA) or (value.kind == UNKNOWN_KIND and isinstance(pair[0], cst.BaseExpression)):
            return frame.device_place(value, pair[0])
        return value.place
    if args.starred:
        return UNKNOWN_PLACE
    default = param.default
    if isinstance(default, cst.SimpleString):
        return from_string(str(default.evaluated_value))
    return UNKNOWN_PLACE


def leave_moved(frame: Frame, node: cst.Call, operand: cst.BaseExpression, value: Value, place: Place) -> None:
    """A function that was called has moved the module it was handed, or may have."""
    key, env = frame.key(operand), frame.env
    if key is None or env is None:
        return
    if frame.function is not None and key in frame.function.param_names:
        frame.moved[key] = UNKNOWN_PLACE if frame.conditional else place
    if value.kind == MODULE:
        if value.obj is not None:
            move_known(frame, node, value, place)
        if key in env or "." in key:
            env[key] = value.but(place=place, origin=node)
            frame.flow.has_paths = frame.flow.has_paths or "." in key
        _store_moved(frame, node, key, env.get(key, value))


def _store_moved(frame: Frame, node: cst.Call, key: str, module: Value) -> None:
    """``self.model.cuda()``: other methods find it moved, or not yet."""
    cls = frame.cls
    if cls is None or cls.is_module or not key.startswith("self.") or key.count(".") > 1 or frame.dead:
        return
    if frame.role == CONSTRUCTOR and not frame.conditional:
        cls.attrs[key[5:]] = module
    else:
        frame.flow.store(cls, key[5:], module, node, frame)


def escape(frame: Frame, node: cst.Call, operand: cst.BaseExpression, value: Value) -> None:
    """A function that cannot be followed is handed a value: it may move a module, and change what is called for that."""
    if value.kind == MODULE and not value.place.is_there:
        leave_moved(frame, node, operand, value, UNKNOWN_PLACE)
    elif value.kind in (LIST, DICT) or (value.kind == THING and value.ref is None):
        key = frame.key(operand)
        if key is not None and frame.env is not None and type(frame.scope.source.parents.get(node)) is cst.Expr:
            frame.change(value, key, without_place(value))  # called for what it does


def substitute(value: Value, places: dict[tuple[str, int], Place]) -> Value:
    """The value with the callee's symbols replaced by the caller's places."""
    kind = value.kind
    if kind in (LIST, TUPLE, DICT):
        items = value.items
        if isinstance(items, Value):
            return value.but(items=substitute(items, places), ref=None)
        if isinstance(items, list):
            return value.but(items=[substitute(item, places) for item in items])
        if isinstance(items, dict):
            return value.but(items={key: substitute(item, places) for key, item in items.items()})
        return value
    place = places.get((value.place.name, value.place.scope))
    if place is None or place == value.place or value.place.kind not in ("device", "param"):
        return value
    if place.kind == "unknown" and kind == DEVICE:
        return value.but(place=UNKNOWN_PLACE)
    return value.but(place=place)


# methods ------------------------------------------------------------------------------------------


def method_call(frame: Frame, node: cst.Call, func: cst.Attribute, receiver: Value, name: str) -> Value:
    from devlint.flow.expressions import attribute

    kind = receiver.kind
    if name in table.MOVES and kind in (TENSOR, THING, MODULE, UNKNOWN_KIND, SELF):
        return move(frame, node, func, receiver, name, arguments(frame, node))
    if kind == TENSOR:
        return tensor_method(frame, node, func, receiver, name)
    if kind == THING:
        return thing_method(frame, node, func, receiver, name)
    if kind == MODULE:
        return module_method(frame, node, func, receiver, name, arguments(frame, node))
    if kind == SELF or kind == SUPER:
        return self_call(frame, node, func, receiver, name)
    if kind == INSTANCE:
        args = arguments(frame, node)
        if receiver.text is not None:
            return _instance_of_known(frame, node, receiver, name, args)
        method = receiver.ref.find_method(name) if receiver.ref is not None else None
        if method is not None:
            return project_call(frame, node, method, args, receiver)
        return call_value(frame, node, attribute(frame, func, receiver, name), args)
    if kind == CLASS:
        args = arguments(frame, node)
        method = receiver.ref.find_method(name)
        if method is not None and not method.is_property:
            return project_call(frame, node, method, args, receiver=None)
        if name == "from_pretrained" and receiver.ref.is_module:
            return Value(MODULE, UNKNOWN_PLACE, node, ref=receiver.ref, obj=node)
        return UNKNOWN
    if kind in (LIST, TUPLE, DICT):
        return container_method(frame, node, func, receiver, name, arguments(frame, node))
    args = arguments(frame, node)
    if kind in (DATA, ARRAY):
        if kind == ARRAY and name not in arrays.VIEWS:
            copies.read(frame, node, receiver)
        return receiver if name in arrays.VIEWS else _array_result(kind, name)
    if kind == OPTIMIZER:
        return optimizer_method(frame, node, func, receiver, name, args)
    if kind == GENERATOR:
        return receiver if name == "manual_seed" else UNKNOWN
    if kind == LOADER:
        return receiver if name in ("__iter__",) else UNKNOWN
    if kind == PARAMS:
        return receiver
    return unknown_method(frame, node, func, name, args)


def unknown_method(frame: Frame, node: cst.Call, func: cst.Attribute, name: str, args: Args) -> Value:
    """A method of something unknown: some names say enough."""
    if name == "parameters":
        return Value(PARAMS, UNKNOWN_PLACE, node)
    if name == "prepare" or name == "setup" or name == "setup_dataloaders":
        holder = (frame.key(func.value) or "").rpartition(".")[2]
        if "accelerator" in holder or holder == "fabric":
            return prepared(frame, func, args)
    if name == "backward" and isinstance(func.value, cst.Name) and frame.env is not None:
        return NOTHING
    return unknown_call(frame, node, args)


def prepared(frame: Frame, func: cst.Attribute, args: Args) -> Value:
    """``accelerator.prepare(...)``: models are moved, loaders give batches that are there."""
    key = frame.key(func.value) or "accelerator"
    place = frame.symbol(f"{key}.device")
    values = []
    for operand, value in args.positional:
        name = (frame.key(operand) or "").rpartition(".")[2]
        if value.kind in (MODULE, LOADER):
            value = value.but(place=place, origin=operand, pinned=None)
        elif value.kind == OPTIMIZER:
            value = value.but(items=())  # follows the modules
        elif value.kind == UNKNOWN_KIND and hypothesis.MODEL_NAME.match(name):
            value = Value(MODULE, place, operand, obj=operand)
        elif value.kind == UNKNOWN_KIND and hypothesis.LOADER_NAME.search(name):
            value = Value(LOADER, place, operand)
        values.append(value)
    if args.starred or not values:
        return UNKNOWN
    return values[0] if len(values) == 1 else Value(TUPLE, items=values)


def _instance_of_known(frame: Frame, node: cst.Call, receiver: Value, name: str, args: Args) -> Value:
    if receiver.text in arrays.INSTANCES:
        return arrays.library_method(frame, node, receiver, name, args)
    if receiver.text == "accelerator" and isinstance(node.func, cst.Attribute):
        if name == "prepare":
            return prepared(frame, node.func, args)
        return UNKNOWN
    if receiver.text == "distribution":
        if name in ("sample", "rsample", "mean", "log_prob", "entropy", "cdf", "icdf"):
            if name in ("log_prob", "cdf", "icdf"):
                frame.meet(node, [(node.func, tensor(receiver.place, receiver.origin)), *args.positional], f"`{name}`")
            return tensor(receiver.place, node)
    return UNKNOWN


def self_call(frame: Frame, node: cst.Call, func: cst.Attribute, receiver: Value, name: str) -> Value:
    """``self.method(...)``, ``self.layer(...)`` and what ``nn.Module`` gives every module."""
    from devlint.flow.expressions import attribute

    cls: Class | None = receiver.ref
    if cls is None:
        arguments(frame, node)
        return UNKNOWN
    method = None
    if receiver.kind == SELF:
        method = cls.find_method(name)
    else:
        for base in cls.lineage[1:]:
            method = base.methods.get(name)
            if method is not None:
                break
    args = arguments(frame, node)
    if method is not None and not method.is_property:
        result = project_call(frame, node, method, args, receiver)
        if receiver.kind == SELF and any(name in sub.methods for sub in cls.descendants):
            result = _of_overrides(frame, node, name, cls, args, receiver, result)
        return result
    if cls.is_module:
        if name in ("register_buffer", "register_parameter", "add_state", "add_module", "register_module"):
            return _register(frame, node, cls, name, args)
        if name in ("parameters", "buffers"):
            return Value(PARAMS, receiver.place, node, obj=cls)
        if name in ("train", "eval", "requires_grad_"):
            return receiver
    if receiver.kind == SUPER:
        return UNKNOWN
    value = attribute(frame, func, receiver, name)
    frame.values[func] = value
    if value.kind == UNKNOWN_KIND:
        return unknown_method(frame, node, func, name, args)
    return call_value(frame, node, value, args)


def _of_overrides(
    frame: Frame, node: cst.Call, name: str, cls: Class, args: Args, receiver: Value, result: Value
) -> Value:
    """What a method of ``self`` gives where a subclass in the file may have put its own in its place."""
    others = [method for sub in cls.descendants if (method := sub.methods.get(name)) is not None]
    if len(others) > _MOST_OVERRIDES:
        return without_place(result)
    for method in others:
        result = join(result, project_call(frame, node, method, args, receiver))
    return result


_MOST_OVERRIDES = 4


def _register(frame: Frame, node: cst.Call, cls: Class, name: str, args: Args) -> Value:
    given = args.get(0, "name")
    value = args.value(1, "tensor", "param", "module", "default") or UNKNOWN
    if given is not None and given[1].text is None:
        cls.buffers_by_variable = True
    if given is not None and given[1].text is not None:
        cls.buffers.add(given[1].text)
        if value.kind in (TENSOR, THING, UNKNOWN_KIND, DATA, NONE):
            trained = name == "register_parameter"
            value = tensor(
                value.place,
                node,
                zero=value.zero,
                grad=trained,
                ref="parameter" if trained else "buffer",
                tracked=True if trained else value.tracked,
            )
        frame.flow.store(cls, given[1].text, value, node, frame)
        if frame.env is not None:
            frame.env[f"self.{given[1].text}"] = value
            frame.flow.has_paths = True
    return NOTHING


def container_method(
    frame: Frame, node: cst.Call, func: cst.Attribute, receiver: Value, name: str, args: Args
) -> Value:
    from devlint.flow.expressions import any_of, updated

    kind = receiver.kind
    key = frame.key(func.value)
    if kind == LIST and name in ("append", "appendleft", "insert", "extend", "add"):
        given = args.value(1 if name == "insert" else 0) or UNKNOWN
        if name == "extend":
            given = element(given)
        items = given if receiver.items is None else join(receiver.items, given)
        longer = receiver.but(items=items, ref=None)
        frame.change(receiver, key, longer)
        if key is not None and key.startswith("self.") and frame.cls is not None:
            if frame.env is None or key not in frame.env:
                frame.flow.store(frame.cls, key[5:], longer, node, frame)
        return NOTHING
    if kind == DICT:
        if name == "items":
            return Value(LIST, items=Value(TUPLE, items=[HOST_DATA, any_of(receiver)]))
        if name in ("values", "keys"):
            return Value(LIST, items=any_of(receiver) if name == "values" else HOST_DATA)
        if name in ("get", "pop", "setdefault"):
            constant = args.value(0)
            text = constant.text if constant is not None else None
            found = receiver.items.get(text) if text is not None else None
            if found is None and name == "setdefault" and text is not None:
                found = args.value(1) or UNKNOWN
                if "*" in receiver.items:
                    found = join(found, receiver.items["*"])
                frame.change(receiver, key, receiver.but(items={**receiver.items, text: found}))
            return found or UNKNOWN
        if name == "copy":
            return receiver.but(obj=node)
        if name == "update":
            by = args.value(0) if args.positional else Value(DICT, items={})
            for keyword, (_, value) in args.keywords.items():
                by = updated(by or UNKNOWN, Value(DICT, items={keyword: value}))
            frame.change(receiver, key, updated(receiver, by if by is not None and not args.starred else UNKNOWN))
            return NOTHING
        if name == "clear":
            frame.change(receiver, key, receiver.but(items={}))
        return UNKNOWN
    if name in ("pop", "popleft"):
        return element(receiver)
    if name == "copy":
        return receiver
    return HOST_DATA if name in ("index", "count") else UNKNOWN


# tensors ------------------------------------------------------------------------------------------


def tensor_method(frame: Frame, node: cst.Call, func: cst.Attribute, receiver: Value, name: str) -> Value:
    args = arguments(frame, node)
    if name == "numpy":
        return to_numpy(frame, node, func, receiver, args)
    if name == "tolist" or name == "item":
        frame.wait(node, name, func.value, receiver, explicit=True)
        return HOST_DATA
    if name == "pin_memory":
        return receiver.but(pinned=True, obj=None) if receiver.place.is_host else receiver
    if name in table.TYPE_MOVES:
        return _type_move(frame, node, func, receiver, name, args)
    if name in table.NEW_METHODS:
        given = args.get(None, "device")
        place = receiver.place
        if given is not None and given[1].kind != NONE:
            place = frame.device_place(given[1], given[0])
        pinned = False if place.is_host and args.get(None, "pin_memory") is None else None
        return tensor(place, node, zero=False if table.NEW_METHODS[name].rank == "sized" else None, pinned=pinned)
    if name == "clone":
        return receiver.but(grad=False, obj=None, pinned=False)
    if name == "detach" or name == "detach_":
        return receiver.but(grad=False, tracked=False)
    if name == "requires_grad_":
        asked = args.get(0, "requires_grad")
        grad = asked is None or not _is_false(asked[0])
        return receiver.but(grad=grad, tracked=grad if asked is None or not grad or _is_true(asked[0]) else None)
    operation = table.METHODS.get(name)
    if operation is None:
        return UNKNOWN
    if name in table.IMPLICIT_WAITS and _waits(name, args, 0):
        frame.wait(node, name, func.value, receiver, explicit=False)
    operands: list[tuple[cst.CSTNode, Value]] = [(func.value, receiver)]
    if operation.operands == "all":
        operands += args.positional
        operands += args.keywords.values()
    if name == "copy_":
        copy_into(frame, node, func, receiver, args)
    if operation.operands == "none":
        return receiver if operation.result == "self" else UNKNOWN
    if name not in _SAME_MEMORY and operation.result not in ("host", "none"):
        for _, value in operands:
            copies.read(frame, node, value)
    # what is written to must be there too, whatever its dimensions
    strict = operation.strict or (operation.result == "self" and receiver.place.is_host)
    chosen = frame.meet(node, operands, f"`{name}`", strict=strict)
    if operation.result == "self":
        return receiver
    result = _result(frame, node, operation, chosen, args, 0, operands)
    if name in ("view", "reshape") and result.zero is None and _gives_sizes(args):
        result = result.but(zero=False)
    if result.kind == TENSOR and operation.operands == "first":
        result = result.but(ref=receiver.ref if receiver.ref == "mask" else None)
    return result


def _gives_sizes(args: Args) -> bool:
    """``view(-1, 1)``, ``reshape((n, 3))``: at least one dimension is asked for."""
    if len(args.positional) != 1:
        return len(args.positional) > 1
    node = args.positional[0][0]
    return isinstance(node, cst.Integer | cst.UnaryOperation) or (
        isinstance(node, cst.Tuple | cst.List) and bool(node.elements)
    )


def thing_method(frame: Frame, node: cst.Call, func: cst.Attribute, receiver: Value, name: str) -> Value:
    """A method of a batch, an output, or something that ``.to()`` moved."""
    args = arguments(frame, node)
    if receiver.ref == "moved" and name in ("parameters", "named_parameters"):
        return Value(PARAMS, receiver.place, node, obj=receiver.obj)
    if receiver.ref == "moved" and name in ("eval", "train", "half", "float", "requires_grad_", "bfloat16"):
        return receiver
    if name in ("items", "values", "keys", "get", "copy", "pop"):
        if name == "items":
            return Value(LIST, items=Value(TUPLE, items=[HOST_DATA, receiver]))
        if name == "keys":
            return HOST_DATA
        return Value(LIST, items=receiver) if name == "values" else receiver
    if name == "numpy":
        return to_numpy(frame, node, func, receiver, args)
    if name in ("item", "tolist"):
        frame.wait(node, name, func.value, receiver, explicit=True)
        return HOST_DATA
    if name == "pin_memory":
        return receiver.but(pinned=True)
    operation = table.METHODS.get(name)
    if operation is None or name in ("index", "count", "update", "append", "sample", "mean", "mode"):
        return UNKNOWN if name != "mean" else tensor_method(frame, node, func, receiver.but(kind=TENSOR), name)
    return tensor_method(frame, node, func, receiver.but(kind=TENSOR, ref=None), name)


def to_numpy(frame: Frame, node: cst.Call, func: cst.Attribute, receiver: Value, args: Args) -> Value:
    forced = args.get(0, "force")
    if forced is not None and not _is_false(forced[0]):
        if receiver.place.is_there:
            frame.wait(node, "numpy", func.value, receiver, explicit=True)
    elif receiver.ref != "moved":
        arrays.use(frame, node, "numpy", func.value, receiver)
    return Value(ARRAY, HOST, receiver.origin)  # the same memory


def _type_move(frame: Frame, node: cst.Call, func: cst.Attribute, receiver: Value, name: str, args: Args) -> Value:
    given = args.get(0, "dtype", "other")
    if given is None:
        return HOST_DATA
    value = given[1]
    if name == "type_as":
        return receiver.but(place=value.place if value.holds_tensors else UNKNOWN_PLACE, obj=None, grad=False)
    if value.kind == NAME and value.ref in table.DEVICE_TYPED:
        return receiver.but(place=Place("fixed", "cuda"), origin=node, obj=None)
    if value.kind == DTYPE or (value.kind == NAME and str(value.ref).startswith("torch.")):
        return receiver.but(obj=None, grad=False)
    if value.text is not None:
        place = Place("fixed", "cuda") if "cuda" in value.text else receiver.place
        return receiver.but(place=place, origin=node, obj=None)
    return receiver.but(place=UNKNOWN_PLACE, origin=None, obj=None)


# moves --------------------------------------------------------------------------------------------


def copy_into(frame: Frame, node: cst.Call, func: cst.Attribute, receiver: Value, args: Args) -> None:
    """``receiver.copy_(src, non_blocking)``: across devices where the two are apart."""
    given = args.get(0, "src", "other")
    if given is None or frame.dead:
        return
    non_blocking = _flag(args, 1, "non_blocking")
    frame.facts.copies[node] = Copy(node, *given, func.value, receiver, non_blocking)
    if not non_blocking:
        copies.may_be_done(frame)
    elif receiver.place.is_host and receiver.pinned and given[1].place.is_there:
        # into pageable memory such a copy returns only when it is done
        copies.begin(frame, node)
        frame.change(receiver, frame.key(func.value), receiver.but(origin=node))


def move(frame: Frame, node: cst.Call, func: cst.Attribute, receiver: Value, how: str, args: Args) -> Value:
    """``.to(...)``, ``.cuda(...)``, ``.cpu()``: of a tensor, a module, or what is either."""
    if receiver.kind == SELF:
        method = receiver.ref.find_method(how) if receiver.ref is not None else None
        if method is not None:
            return project_call(frame, node, method, args, receiver)
    target, target_node, sure = _target(frame, how, args)
    if target is None:
        # a dtype or a memory format: nothing moves
        return receiver.but(grad=False, obj=receiver.obj) if receiver.kind != SELF else receiver
    non_blocking = _non_blocking(how, args)
    if sure and not frame.dead:
        frame.facts.moves[node] = Move(node, how, func.value, receiver, target, target_node, non_blocking)
    if how == "cpu" or (target.is_host and sure and non_blocking is False):
        if receiver.place.is_there and (
            receiver.kind == TENSOR or (receiver.kind == THING and receiver.ref != "moved")
        ):
            frame.wait(node, how, func.value, receiver, explicit=True)
    if not non_blocking:
        copies.may_be_done(frame)
    elif sure and target.is_host and _comes_from_device(receiver):
        copies.begin(frame, node)
    kind = receiver.kind
    tracked = False if frame.recording is False else receiver.tracked
    _note_parameter(frame, frame.key(func.value), target)
    if kind == TENSOR:
        same_place = target == receiver.place and target.kind != "unknown"
        pinned = receiver.pinned if same_place else None
        if target.is_host and receiver.place.is_there and non_blocking:
            pinned = True  # what such a copy is written to
        return Value(
            TENSOR,
            target,
            receiver.origin if same_place else node,
            pinned=pinned,
            zero=receiver.zero,
            ref=receiver.ref if receiver.ref in ("mask",) else None,
            tracked=tracked,
        )
    if kind == THING:
        ref = receiver.ref if receiver.ref == "moved" else None
        return Value(THING, target, node, ref=ref, obj=receiver.obj, tracked=tracked)
    if kind == MODULE:
        return move_module(frame, node, func, receiver, target)
    if kind == SELF:
        return _move_self(frame, node, func, receiver, target)
    moved = Value(THING, target, node, ref="moved", obj=node)
    # a model is moved in place, whether or not the result is used
    key = frame.key(func.value)
    if key is not None and frame.env is not None and hypothesis.MODEL_NAME.match(key.rpartition(".")[2]):
        moved = Value(MODULE, target, node, obj=node)
        frame.env[key] = moved
        frame.flow.has_paths = frame.flow.has_paths or "." in key
    return moved


def _comes_from_device(value: Value) -> bool:
    """On a device, or a tensor handed in: a copy to the host means something only where it is on one."""
    return value.holds_tensors and value.place.is_there or value.kind == TENSOR and value.place.kind == "param"


def _target(frame: Frame, how: str, args: Args) -> tuple[Place | None, cst.BaseExpression | None, bool]:
    """Where a move goes; ``None`` for a conversion that moves nothing; and whether it surely is a move."""
    if how == "cpu":
        return HOST, None, True
    if how != "to":
        given = args.get(0, "device")
        if given is None or given[1].kind == NONE:
            return Place("fixed", how), None, True
        if given[1].kind == DATA and given[1].text is None and isinstance(given[0], cst.Integer):
            return Place("fixed", f"{how}:{given[0].value}"), given[0], True
        place = frame.device_place(given[1], given[0])
        if not place.is_known or place == SOMEWHERE:
            key = frame.key(given[0])
            place = frame.symbol(key) if key is not None else SOMEWHERE
        return place, given[0], True
    given = args.get(None, "device") or args.get(None, "other")
    if given is None:
        for pair in args.positional[:1]:
            if pair[1].kind == DTYPE:
                return None, None, False
            given = pair
    if given is None:
        if args.starred:
            return UNKNOWN_PLACE, None, False
        return None, None, False  # to(dtype=...), to(memory_format=...)
    operand, value = given
    if value.kind == NONE:
        return None, None, False
    place = frame.device_place(value, operand)
    if value.kind == UNKNOWN_KIND and not place.is_known:
        key = frame.key(operand) or ""
        if "dtype" in key.lower():
            return None, None, False
        return UNKNOWN_PLACE, operand, False
    if value.kind == NAME and not place.is_known:
        return (None, None, False) if str(value.ref).startswith("torch.") else (UNKNOWN_PLACE, operand, False)
    sure = value.kind in (DEVICE, TENSOR) or value.text is not None or place.is_known
    return place, operand, sure


def _non_blocking(how: str, args: Args) -> bool | None:
    # cuda(device, non_blocking), to(other, non_blocking), to(device, dtype, non_blocking)
    position = 2 if how == "to" and args.positional and args.positional[0][1].kind != TENSOR else 1
    return _flag(args, position, "non_blocking") if how != "cpu" else False


def _flag(args: Args, position: int, name: str) -> bool | None:
    """An argument that is ``False`` unless given; ``None`` where it depends on a variable."""
    given = args.get(position, name)
    if given is None:
        return False if not args.starred else None
    return True if _is_true(given[0]) else False if _is_false(given[0]) else None


def move_module(frame: Frame, node: cst.Call, func: cst.Attribute, module: Value, target: Place) -> Value:
    """``model.to(device)``: in place, under every name the module has."""
    moved = module.but(place=target, origin=node)
    env = frame.env
    if env is None:
        return moved
    key = frame.key(func.value)
    if module.obj is not None:
        names = move_known(frame, node, module, target)
        _leave_optimizers_behind(frame, node, [module.obj], key or (names or ["the module"])[0], target)
    if key is not None:
        env[key] = moved
        frame.flow.has_paths = frame.flow.has_paths or "." in key
        _store_moved(frame, node, key, moved)
    return moved


def move_known(frame: Frame, node: cst.Call, module: Value, target: Place) -> list[str]:
    """Move a module under all names it has, with its parts; what holds it, or may be it, has no sure place then."""
    env = frame.env
    assert env is not None
    moving, parts = {module.obj}, frame.flow.parts
    todo = [module.obj]
    while todo:
        for part in parts.get(todo.pop(), ()):
            if part not in moving:
                moving.add(part)
                todo.append(part)
    names = []
    for name, value in env.items():
        if value.kind == MODULE:
            if value.obj in moving and value.obj is not SEVERAL:
                names.append(name)
                env[name] = value.but(place=target, origin=node)
            elif value.place != target and (SEVERAL in moving or parts.get(value.obj, _NO_PARTS) & moving):
                env[name] = without_place(value)
        elif value.kind in (LIST, TUPLE, DICT):
            inside = modules_in(value)
            if any(m.place != target and (m.obj in moving or SEVERAL in (m.obj, module.obj)) for m in inside):
                env[name] = without_place(value)
    return names


_NO_PARTS: set[object] = set()


def _note_parameter(frame: Frame, key: str | None, target: Place) -> None:
    """For callers: a parameter, should it be a module, is moved."""
    function = frame.function
    if key is not None and function is not None and key in function.param_names and not frame.dead:
        sure = not frame.conditional and key not in function.assigned
        frame.moved[key] = target if sure else UNKNOWN_PLACE


def _move_self(frame: Frame, node: cst.Call, func: cst.Attribute, receiver: Value, target: Place) -> Value:
    """``self.to(device)``: a constructor moves its module, and the modules that it has put in so far."""
    env, name = frame.env, frame.key(func.value)
    if env is None or name is None or frame.role != CONSTRUCTOR or receiver.ref is None or not receiver.ref.is_module:
        return receiver
    parts = {key: value for key, value in env.items() if value.kind == MODULE and key.startswith(f"{name}.")}
    for key, value in parts.items():
        env[key] = value.but(place=target, origin=node)
    env[name] = moved = receiver.but(place=target)
    objects = [receiver.ref, *(value.obj for value in parts.values() if value.obj is not None)]
    _leave_optimizers_behind(frame, node, objects, name, target)
    return moved


def _leave_optimizers_behind(frame: Frame, node: cst.Call, moved: list[Any], module: str, target: Place) -> None:
    """Note which optimizers were built from parameters of what moves from the host to a device now."""
    env = frame.env
    if env is None or frame.dead or not (target.is_there or target.kind == "param"):
        return
    for name, value in env.items():
        if value.kind != OPTIMIZER or not value.items:
            continue
        built = []
        for each in value.items:
            if each.moved is None and any(obj in each.modules for obj in moved):
                each = each._replace(moved=node)
                # an attribute is there for others to use
                frame.facts.built_before_move.setdefault(
                    each.call, BuiltBeforeMove(each.call, module, node, each.state, used="." in name)
                )
            built.append(each)
        env[name] = value.but(items=tuple(built))


def _whole(frame: Frame, part: cst.BaseExpression) -> Any:
    """The identity of the module that ``model.backbone`` is a part of: both move with it."""
    while type(part) is cst.Attribute:
        part = part.value
        value = frame.values.get(part)
        if value is not None and value.kind == MODULE and value.obj is not None:
            return value.obj
    return None


def module_method(frame: Frame, node: cst.Call, func: cst.Attribute, module: Value, name: str, args: Args) -> Value:
    from devlint.flow.expressions import attribute

    if isinstance(module.ref, Class):
        method = module.ref.find_method(name)
        if method is not None and not method.is_property:
            return project_call(frame, node, method, args, module)
    if name in ("parameters", "buffers"):
        return Value(
            PARAMS, module.place, node, obj=module.obj if module.obj is not None else _whole(frame, func.value)
        )
    if name in ("named_parameters", "named_buffers"):
        return Value(LIST, items=Value(TUPLE, items=[HOST_DATA, tensor(module.place, node, obj=module.obj)]))
    if name in ("state_dict",):
        return Value(DICT, items={"*": tensor(module.place, node)})
    if name in _CHAINS:
        return module
    if name in ("modules", "children"):
        return Value(LIST, items=Value(MODULE, module.place, module.origin))
    if name == "to_empty":
        given = args.get(0, "device")
        place = frame.device_place(given[1], given[0]) if given is not None else UNKNOWN_PLACE
        return move_module(frame, node, func, module, place)
    if name in ("append", "extend", "insert", "load_state_dict", "zero_grad", "apply", "__len__"):
        return module if name == "apply" else UNKNOWN
    if name == "forward":
        return module_call(frame, node, module, args)
    if name in ("items", "values"):
        inner = Value(MODULE, module.place, module.origin)
        return Value(LIST, items=Value(TUPLE, items=[HOST_DATA, inner]) if name == "items" else inner)
    value = attribute(frame, func, module, name)
    if value.kind != UNKNOWN_KIND:
        return call_value(frame, node, value, args)
    return UNKNOWN


_CHAINS = frozenset("train eval half float double bfloat16 requires_grad_ share_memory type float16 compile".split())
