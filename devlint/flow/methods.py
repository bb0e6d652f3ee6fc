"""Methods: of tensors, batches, containers, ``self``, and of what is not known."""

from __future__ import annotations

import functools

import libcst as cst

from devlint.flow import (
    arrays,
    attributes,
    calls,
    copies,
    factories,
    loaders,
    modules,
    moves,
    operations,
    optimizers,
    outside,
    project_calls,
    suppositions,
)
from devlint.flow import torch_table as table
from devlint.flow.arguments import Args, Operand, is_false, is_true
from devlint.flow.frame import Frame
from devlint.flow.place import HOST, SOMEWHERE, UNKNOWN_PLACE
from devlint.flow.scope import Class, Function
from devlint.flow.value import (
    ARRAY,
    CLASS,
    DATA,
    DEVICE,
    DICT,
    ELEMENT,
    FILE,
    GENERATOR,
    HOST_DATA,
    INSTANCE,
    LIST,
    LOADER,
    MODULE,
    NONE,
    NOTHING,
    NUMPY_ARRAY,
    OF_LAYER,
    OPTIMIZER,
    PARAMS,
    PARTIAL,
    SELF,
    SUPER,
    TENSOR,
    THING,
    TUPLE,
    UNKNOWN,
    UNKNOWN_KIND,
    Value,
    any_of,
    element,
    join,
    part,
    tensor,
    updated,
    without_place,
)

#: What makes numbers of a mask: ``mask.float()``, ``mask.sum(1)``.
_COUNTS = frozenset("float half double bfloat16 int long short byte sum mean cumsum argmax argmin".split())


def call(frame: Frame, node: cst.Call, func: cst.Attribute, receiver: Value, name: str) -> Value:
    """``receiver.name(...)``, sorted by what the receiver is."""
    kind = receiver.kind
    if name in table.MOVES and kind in (TENSOR, THING, MODULE, UNKNOWN_KIND, SELF):
        return moves.move(frame, node, func, receiver, name, calls.arguments(frame, node))
    if kind == TENSOR:
        return _tensor_method(frame, node, func, receiver, name)
    if kind == THING:
        return _thing_method(frame, node, func, receiver, name)
    if kind == MODULE:
        return modules.method(frame, node, func, receiver, name, calls.arguments(frame, node))
    if kind in (SELF, SUPER):
        return _self_method(frame, node, func, receiver, name)
    if kind == INSTANCE:
        args = calls.arguments(frame, node)
        if receiver.text is not None:
            return _known_instance_method(frame, node, receiver, name, args)
        method = receiver.ref.find_method(name) if receiver.ref is not None else None
        if method is not None:
            return project_calls.call(frame, node, method, args, receiver)
        return calls.call_value(frame, node, attributes.attribute(frame, func, receiver, name), args)
    if kind == CLASS:
        args = calls.arguments(frame, node)
        method = receiver.ref.find_method(name)
        if method is not None and not method.is_property:
            return project_calls.call(frame, node, method, args, receiver=None)
        if name == "from_pretrained" and receiver.ref.is_module:
            return Value(MODULE, UNKNOWN_PLACE, node, ref=receiver.ref, obj=node)
        applied = attributes.attribute(frame, func, receiver, name) if name == "apply" else UNKNOWN
        return calls.call_value(frame, node, applied, args) if applied.kind == PARTIAL else UNKNOWN
    if kind in (LIST, TUPLE, DICT):
        return _container_method(frame, node, func, receiver, name, calls.arguments(frame, node))
    args = calls.arguments(frame, node)
    if kind in (DATA, ARRAY):
        if kind == ARRAY and name not in arrays.VIEWS:
            copies.read(frame, node, receiver)
        return receiver if name in arrays.VIEWS else _array_result(kind, name)
    if kind == OPTIMIZER:
        return optimizers.method(frame, node, func, receiver, name)
    if kind == GENERATOR:
        return receiver if name == "manual_seed" else UNKNOWN
    if kind == LOADER:
        return receiver if name == "__iter__" else UNKNOWN
    if kind == PARAMS:
        return receiver
    if receiver.items is not None and name in table.METHODS:
        return suppositions.of_method(frame, node, receiver, name, args)
    return _unknown_method(frame, node, func, name, args)


def _array_result(kind: str, name: str) -> Value:
    return NUMPY_ARRAY if kind == ARRAY and name not in ("item", "tolist") else HOST_DATA


def _unknown_method(frame: Frame, node: cst.Call, func: cst.Attribute, name: str, args: Args) -> Value:
    """A method of something unknown: some names say enough."""
    if name == "parameters":
        return Value(PARAMS, UNKNOWN_PLACE, node)
    holder = (frame.key(func.value) or "").rpartition(".")[2]
    if name in ("prepare", "setup", "setup_dataloaders") and ("accelerator" in holder or holder == "fabric"):
        return loaders.prepared(frame, func, args)
    if "accelerator" in holder:
        _gather(frame, node, name, args)
    if name == "backward" and isinstance(func.value, cst.Name) and frame.env is not None:
        return NOTHING
    if name == "numpy":
        return NUMPY_ARRAY
    result = calls.unknown_call(frame, node, args)
    # torch.tensor(policy(x).mean.clamp(-1, 1))  is where the policy is
    return tensor(UNKNOWN_PLACE, node) if result is UNKNOWN and factories.is_of_tensors(node) else result


def _gather(frame: Frame, node: cst.Call, name: str, args: Args) -> None:
    """``accelerator.gather(torch.tensor(n))``: the processes exchange what is on their devices."""
    if name in ("gather", "gather_for_metrics", "reduce") and args.positional:
        operand, value = args.positional[0]
        if value.kind == TENSOR and value.place.is_host:
            frame.met(node, f"`{name}` of accelerate", (operand, value), (node.func, Value(DEVICE, SOMEWHERE)))


def _known_instance_method(frame: Frame, node: cst.Call, receiver: Value, name: str, args: Args) -> Value:
    if receiver.text in arrays.INSTANCES:
        return arrays.library_method(frame, node, receiver, name, args)
    if receiver.text == "accelerator" and isinstance(node.func, cst.Attribute):
        if name == "prepare":
            return loaders.prepared(frame, node.func, args)
        _gather(frame, node, name, args)
        return outside.accelerator_method(name, args)
    if receiver.text == "pipeline" and name in table.MOVES:
        return receiver
    if receiver.text == "distribution" and name in _OF_DISTRIBUTIONS:
        if name in ("log_prob", "cdf", "icdf"):
            frame.meet(node, [(node.func, tensor(receiver.place, receiver.origin)), *args.positional], f"`{name}`")
        if name in ("sample", "rsample") and receiver.place.is_host and _has_dimensions(node):
            return tensor(receiver.place, receiver.origin, zero=False)
        return tensor(receiver.place, node)
    return UNKNOWN


def _has_dimensions(node: cst.Call) -> bool:
    """``sample((3,))``, ``sample(x.shape)``, not ``sample()`` and ``sample(())``, which may give a number."""
    size = node.args[0].value if node.args else None
    if isinstance(size, cst.Tuple | cst.List):
        return bool(size.elements)
    return isinstance(size, cst.Attribute | cst.BinaryOperation) or (isinstance(size, cst.Call) and bool(size.args))


_OF_DISTRIBUTIONS = frozenset("sample rsample mean log_prob entropy cdf icdf".split())


def _self_method(frame: Frame, node: cst.Call, func: cst.Attribute, receiver: Value, name: str) -> Value:
    """``self.method(...)``, ``self.layer(...)`` and what ``nn.Module`` gives every module."""
    cls: Class | None = receiver.ref
    if cls is None:
        calls.arguments(frame, node)
        return UNKNOWN
    method = None
    if receiver.kind == SELF:
        method = cls.find_method(name)
    else:
        for base in cls.lineage[1:]:
            method = base.methods.get(name)
            if method is not None:
                break
        if method is None and name != "__init__" and (heir := frame.flow.heir(cls, name)) is not None:
            method = heir.methods.get(name)
    args = calls.arguments(frame, node)
    if method is not None and not method.is_property:
        result = project_calls.call(frame, node, method, args, receiver)
        _note_changed(frame, cls, method)
        if receiver.kind == SELF and any(name in sub.methods for sub in cls.descendants):
            result = _of_overrides(frame, node, name, cls, args, receiver, result)
        return result
    if cls.is_module:
        if name in ("register_buffer", "register_parameter", "add_state", "add_module", "register_module"):
            return modules.register(frame, node, cls, name, args)
        if name in ("parameters", "buffers"):
            return Value(PARAMS, receiver.place, node, obj=cls)
        if name in ("train", "eval", "requires_grad_"):
            return receiver
    if receiver.kind == SUPER:
        return UNKNOWN
    value = attributes.attribute(frame, func, receiver, name)
    frame.values[func] = value
    if value.kind == UNKNOWN_KIND:
        return _unknown_method(frame, node, func, name, args)
    return calls.call_value(frame, node, value, args)


def _note_changed(frame: Frame, cls: Class, method: Function) -> None:
    """``self.net = Net(); self.put()``, where that moves ``self.net`` or binds it anew."""
    env = frame.env
    if env is None or not frame.flow.has_paths:
        return
    known = {key[5:] for key in env if key.startswith("self.")}
    for each in cls.reached(method) if known else ():
        if each.sets_by_variable:  # for name in names: setattr(self, name, getattr(self, name).cpu())
            frame.shake_attributes()
        for attr in known & (each.stores | each.moves):
            key = f"self.{attr}"
            value = env[key]
            if attr in each.stores:
                stored = [at for owner in cls.lineage for _, at, by in owner.stores.get(attr, ()) if by is each]
                value = functools.reduce(join, [*stored, value]) if stored else UNKNOWN
            if attr in each.moves and value.kind == MODULE:
                value = value.but(place=UNKNOWN_PLACE)
            frame.forget(key)
            env[key] = value


_MOST_OVERRIDES = 4


def _of_overrides(
    frame: Frame, node: cst.Call, name: str, cls: Class, args: Args, receiver: Value, result: Value
) -> Value:
    """What a method of ``self`` gives where a subclass in the file may have put its own in its place."""
    others = [method for sub in cls.descendants if (method := sub.methods.get(name)) is not None]
    if len(others) > _MOST_OVERRIDES:
        return without_place(result)
    for method in others:
        result = join(result, project_calls.call(frame, node, method, args, receiver))
    return result


def _container_method(
    frame: Frame, node: cst.Call, func: cst.Attribute, receiver: Value, name: str, args: Args
) -> Value:
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
            frame.flow.store(frame.cls, key[5:], longer, node, frame)
            if given.is_tensor and given.place.is_host:
                frame.cls.host_states.add(key[5:])  # self.rows.append(rows.cpu())
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
            if found is None and len(args.all) == 1:
                found = receiver.items.get("*")  # batch.get("x")  of a `batch: dict[str, Tensor]`
            return found or UNKNOWN
        if name == "copy":
            return receiver.but(obj=node)
        if name == "update":
            after = receiver
            if args.starred or args.positional:
                after = updated(receiver, UNKNOWN if args.starred else args.value(0) or UNKNOWN)
            for keyword, (_, value) in args.keywords.items():
                after = updated(after, Value(DICT, items={keyword: value}))
            frame.change(receiver, key, after)
            return NOTHING
        if name == "clear":
            frame.change(receiver, key, receiver.but(items={}))
        return UNKNOWN
    if name in ("pop", "popleft", "remove") and kind == LIST:
        frame.change(receiver, key, receiver.but(ref=None))
    if name in ("pop", "popleft"):
        return element(receiver)
    if name == "copy":
        return receiver
    return HOST_DATA if name in ("index", "count") else UNKNOWN


def _tensor_method(frame: Frame, node: cst.Call, func: cst.Attribute, receiver: Value, name: str) -> Value:
    args = calls.arguments(frame, node)
    if name == "numpy":
        return _to_numpy(frame, node, func, receiver, args)
    if name == "tolist" or name == "item":
        frame.wait(node, name, func.value, receiver, explicit=True)
        return HOST_DATA
    if name == "pin_memory":
        return receiver.but(pinned=True, obj=None) if receiver.place.is_host else receiver
    if name in table.TYPE_MOVES:
        return moves.by_type(node, receiver, name, args)
    if name in table.NEW_METHODS:
        given = args.get(None, "device")
        place = receiver.place
        if given is not None and given[1].kind != NONE:
            place = frame.device_place(given[1], given[0])
        pinned = False if place.is_host and args.get(None, "pin_memory") is None else None
        return tensor(place, node, zero=False if table.NEW_METHODS[name].rank == "sized" else None, pinned=pinned)
    if name == "clone" or name == "detach":
        # self.first = self.weight.detach().clone()   is registered nowhere
        ref = None if receiver.ref in ("parameter", "buffer", OF_LAYER) else receiver.ref
        if name == "detach":
            return receiver.but(grad=False, tracked=False, ref=ref)
        return receiver.but(grad=False, obj=None, pinned=False, ref=ref)
    if name == "detach_":
        return receiver.but(grad=False, tracked=False)
    if name == "requires_grad_":
        asked = args.get(0, "requires_grad")
        grad = asked is None or not is_false(asked[0])
        return receiver.but(grad=grad, tracked=grad if asked is None or not grad or is_true(asked[0]) else None)
    if name == "float" and receiver.ref == "parameter":
        return receiver  # most are float32, and the same parameter then
    operation = table.METHODS.get(name)
    if operation is None:
        return UNKNOWN
    if name == "backward":
        operations.meet_gradients(frame, node, "`backward`", (func.value, receiver), args.get(0, "gradient"))
    if name in table.IMPLICIT_WAITS and operations.waits(name, args, 0):
        frame.wait(node, name, func.value, receiver, explicit=False)
    operands: list[Operand] = [(func.value, receiver)]
    if operation.operands == "all" and not operations.bounded_by_number(name, args, 0):
        operands += args.positional
        operands += operations.counted_with(args)
    if name == "copy_":
        moves.copy_into(frame, node, func, receiver, args)
    if operation.operands == "none":
        return receiver if operation.result == "self" else UNKNOWN
    if name not in operations.SAME_MEMORY and operation.result not in ("host", "none"):
        for _, value in operands:
            copies.read(frame, node, value)
    # what is written to must be there too, whatever its dimensions
    strict = operation.strict or (operation.result == "self" and receiver.place.is_host)
    operations.meet_window(frame, node, name, operands, args, 0)
    chosen = frame.meet(node, operands, f"`{name}`", strict=strict)
    if operation.result == "self":
        return receiver
    result = operations.result_of(frame, node, operation, chosen, args, 0, operands)
    if name in ("view", "reshape") and result.zero is None and operations.gives_sizes(args):
        result = result.but(zero=False, or_host=result.or_host)
    if result.kind == TENSOR and operation.operands == "first":
        is_mask = name == "bool" or (receiver.ref == "mask" and name not in _COUNTS)
        result = result.but(ref="mask" if is_mask else None, or_host=result.or_host)
    return suppositions.beside(frame, result, operands)


def _thing_method(frame: Frame, node: cst.Call, func: cst.Attribute, receiver: Value, name: str) -> Value:
    """A method of a batch, an output, or something that ``.to()`` moved."""
    args = calls.arguments(frame, node)
    if receiver.ref == "moved" and name in ("parameters", "named_parameters"):
        return Value(PARAMS, receiver.place, node, obj=receiver.obj)
    if receiver.ref == "moved" and name in ("eval", "train", "half", "float", "requires_grad_", "bfloat16"):
        return receiver.but(text=None) if receiver.text == FILE else receiver  # no number
    if name == "update":
        # batch.update({k: v.to(device) for k, v in batch.items()})
        frame.change(receiver, frame.key(func.value), without_place(receiver))
        return NOTHING
    if name in ("items", "values", "keys", "get", "copy", "pop"):
        if name == "items":
            return Value(LIST, items=Value(TUPLE, items=[HOST_DATA, part(receiver)]))
        if name in ("keys", "copy"):
            return HOST_DATA if name == "keys" else receiver
        return Value(LIST, items=part(receiver)) if name == "values" else part(receiver)
    if name == "numpy":
        return _to_numpy(frame, node, func, receiver, args)
    if name in ("item", "tolist"):
        frame.wait(node, name, func.value, receiver, explicit=True)
        return HOST_DATA
    if name == "pin_memory":
        return receiver.but(pinned=True)
    operation = table.METHODS.get(name)
    if operation is None and receiver.ref == "moved" and type(frame.scope.source.parents.get(node)) is cst.Expr:
        _replace_content(frame, node, func, receiver, name, args)
    if operation is None or name in ("index", "count", "update", "append", "sample", "mean", "mode"):
        return UNKNOWN if name != "mean" else _tensor_method(frame, node, func, receiver.but(kind=TENSOR), name)
    result = _tensor_method(frame, node, func, receiver.but(kind=TENSOR, ref=None), name)
    # for batch in loader: mixed = batch.clone()   of a batch of graphs is one
    of_loader = isinstance(receiver.ref, Value) and receiver.ref.kind == LOADER and receiver.text != ELEMENT
    return result.but(kind=THING) if name == "clone" and of_loader else result


def _replace_content(frame: Frame, node: cst.Call, func: cst.Attribute, receiver: Value, name: str, args: Args) -> None:
    """``self.steps = steps.to(device)`` ... ``self.steps.write(rows)``: what it holds then is where the rows are."""
    key, env, cls = frame.key(func.value), frame.env, frame.cls
    given = [value for _, value in args.all if value.holds_tensors or value.kind == UNKNOWN_KIND]
    if key is None or env is None or not given or name == "load_state_dict":
        return
    env[key] = replaced = without_place(receiver)
    frame.flow.has_paths = frame.flow.has_paths or "." in key
    if cls is not None and key.startswith("self.") and key.count(".") == 1 and not frame.dead:
        frame.flow.store(cls, key[5:], replaced, node, frame)


def _to_numpy(frame: Frame, node: cst.Call, func: cst.Attribute, receiver: Value, args: Args) -> Value:
    forced = args.get(0, "force")
    if forced is not None and not is_false(forced[0]):
        if receiver.place.is_there:
            frame.wait(node, "numpy", func.value, receiver, explicit=True)
    elif receiver.ref != "moved":
        arrays.use(frame, node, "numpy", func.value, receiver)
    return Value(ARRAY, HOST, receiver.origin)  # the same memory
