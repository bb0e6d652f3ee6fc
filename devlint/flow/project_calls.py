"""Functions of the project, called through their summaries."""

from __future__ import annotations

import libcst as cst

from devlint.flow import calls, copies, elsewhere, hypothesis, modules, moves, suppositions
from devlint.flow import torch_table as table
from devlint.flow.arguments import Args, Operand
from devlint.flow.facts import Meeting
from devlint.flow.frame import DEFAULT_PLACE, Frame
from devlint.flow.place import HOST, SOMEWHERE, UNKNOWN_PLACE, Place, from_string
from devlint.flow.scope import Class, Function
from devlint.flow.value import (
    DATA,
    DEVICE,
    DICT,
    INSTANCE,
    LIST,
    LOADER,
    MODULE,
    SELF,
    TENSOR,
    THING,
    TUPLE,
    UNKNOWN,
    UNKNOWN_KIND,
    Value,
    element,
    join,
    substitute,
    without_place,
)


def call(frame: Frame, node: cst.Call, function: Function, args: Args, receiver: Value | None) -> Value:
    """Call a function of the project through its summary, its places replaced by those of the arguments."""
    copies.may_be_done(frame)
    if receiver is None and function.takes_self and not function.is_classmethod and args.positional:
        receiver, args = args.positional[0][1], args._replace(positional=args.positional[1:])  # Net.forward(net, x)
    given = given_to(node, function, args, receiver)
    is_here = function.home is frame.flow
    if is_here:
        # what is followed for another file needs no parents otherwise
        hint(function, given, frame, moved=frame.flow.unit is None and _is_moved_at_once(frame, node))
    _note_default(frame, node, function, given, args)
    summary = frame.flow.summary(function, frame)
    if summary is None or function.is_replaced:
        return calls.unknown_call(frame, node, args)
    places: dict[tuple[str, int], Place] = {}
    for param in function.params:
        name = param.name.value
        pair = given.get(name)
        place = _argument_place(frame, pair, param, args, name in summary.tensors)
        if pair is None and not args.starred and name in function.devices_by_default:
            place = HOST
        places[(name, function.scope)] = place
        # an argument that is not known: `args.device` is the device, that of a tensor is anywhere
        if pair is None or pair[1].kind in (TENSOR, THING, MODULE) or function.is_sized(name):
            places[(f"{name}.device", function.scope)] = places[(name, function.scope)]
    for name, place in summary.moved.items():
        if name in given:
            place = places.get((place.name, place.scope), place if is_here else elsewhere.place(place, places))
            moves.leave_moved(frame, node, *given[name], place)
    for name, (argument, value) in given.items():
        if value.kind == MODULE and name not in summary.moved:
            modules.use(frame, node, argument, value, f"`{function.name}`")
    for name, (argument, value) in given.items():
        if name not in function.items_set and "update" not in function.methods.get(name, ()):
            continue
        key = frame.key(argument)
        if value.kind in (LIST, DICT, THING) and key is not None and not frame.dead:
            frame.forget(key)
            frame.change(value, key, without_place(value))  # def put(batch): batch["x"] = batch["x"].cuda()
    if receiver is not None and function.cls is not None:
        at = receiver.place
        for cls in [function.cls, *(receiver.ref.lineage if isinstance(receiver.ref, Class) else ())]:
            places[("self", cls.scope)] = at
        if receiver.kind == INSTANCE and receiver.items:
            for cls in function.cls.lineage:
                places.update({(f"self.{attr}", cls.scope): place for attr, place in receiver.items.items()})
        given["self"] = (node.func, Value(MODULE, at, receiver.origin, ref=receiver.ref, obj=receiver.obj))
    for first, second in summary.constraints:
        pair, other = given.get(first.name), given.get(second.name)
        a, b = places.get((first.name, first.scope)), places.get((second.name, second.scope))
        if is_here:
            _meet_there(frame, node, function, given, [(first, a, second, b), (second, b, first, a)])
        if pair is not None and other is not None:
            if a is not None and b is not None:
                for name, host, at, there, there_at in (
                    (first.name, pair, a, other, b),
                    (second.name, other, b, pair, a),
                ):
                    made = on_host(frame, node, host[1], at)
                    if made is not None and (name != "self" or _may_stay(frame, node, receiver)):
                        _meet_inside(frame, node, function, (host[0], made), there, there_at)
            for one, two in ((pair, other), (other, pair)):
                if is_here and two[1].place.is_there:
                    frame.leave_unmoved(node, f"`{function.name}`", one, two)
            frame.constrain(pair, other)  # what calls that one has to see to it
    for indexed, index in summary.indexed if is_here and not frame.dead else ():
        rows, by = given.get(indexed), given.get(index)
        if rows is None or by is None or not by[1].is_tensor or by[1].zero is not False:
            continue
        if rows[1].is_tensor and rows[1].place.is_host:  # what is on a device may be indexed from the host
            _meet_inside(frame, node, function, rows, by, by[1].place)
    for pair_of_places in summary.perhaps if is_here and not frame.dead else ():
        _meet_perhaps(frame, node, function, given, pair_of_places, places)
    returned, handed_on = summary.returns, summary.returns.obj
    if not is_here:
        elsewhere.note(frame.flow, node, function)
        returned = elsewhere.value(returned, node, places)
    returned = substitute(returned, places)
    if returned.place == SOMEWHERE and any(place.is_host for place in places.values()):
        # if self.narrow: return self.conv(x)  else return x: on the host where both of them are
        returned = returned.but(place=UNKNOWN_PLACE)
    if returned.or_host is not None:
        returned = returned.but()  # one side of an `if` in there
    redirected = frame.env is not None and DEFAULT_PLACE in frame.env  # what it makes is made there
    if (is_here and summary.captured and frame.stale(summary.captured)) or (redirected and not returned.place.is_there):
        returned = without_place(returned)
    if returned.kind == MODULE and returned.obj is not None:
        # the argument that is handed back, or what each call makes anew
        handed_in = {param: given[param.name.value][1].obj for param in function.params if param.name.value in given}
        returned = returned.but(obj=handed_in.get(handed_on, node))
    if returned.kind == UNKNOWN_KIND:
        return UNKNOWN if summary.gives_data else suppositions.of_call(frame, node, given.values())
    if returned.is_tensor and returned.items is not None:  # made of what it was handed there
        returned = returned.but(items=suppositions.common(frame, given.values()))
    return returned


def on_host(frame: Frame, node: cst.Call, value: Value, place: Place) -> Value | None:
    """An argument that is on the host, be it on one side of an ``if`` only."""
    if place.is_host:
        return value
    if value.or_host is None:
        return None
    made, test, _ = value.or_host
    return made if made.origin not in frame.facts.moves and not hypothesis.decides(frame, test, node) else None


def _meet_inside(frame: Frame, node: cst.Call, function: Function, host: Operand, there: Operand, place: Place) -> None:
    """Two arguments of a function that come together in there."""
    # act(net, torch.from_numpy(obs)): what a module is called with has dimensions
    # act(net, torch.tensor(1.0)): no dimensions at all may be added to anything
    has_dimensions = host[1].zero is False or (host[1].zero is None and host[1].is_tensor and there[1].kind == MODULE)
    is_tensor = host[1].holds_tensors and has_dimensions
    if not is_tensor and not modules.may_hold_tensors(host[1]):
        return
    if place.is_there:
        # on(rows, 0): the number is on no device, and names one
        named = (there[0], there[1].but(place=place)) if there[1].kind == DATA else there
        frame.met(node, f"`{function.name}`", host, named)
    elif place.kind == "param":
        handed = element(there[1]) if there[1].kind == LIST else there[1]
        if handed.kind == TENSOR:
            frame.assume(node, f"`{function.name}`", host, (there[0], handed))


def _meet_perhaps(
    frame: Frame,
    node: cst.Call,
    function: Function,
    given: dict[str, Operand],
    pair: tuple[Place, Place],
    places: dict[tuple[str, int], Place],
) -> None:
    """``pad_with(x, self.padding)``, of a function that puts one beside the other where there is something to pad."""
    for one, other in (pair, pair[::-1]):
        kept, there = given.get(one.name), given.get(other.name)
        at = places.get((other.name, other.scope))
        if kept is None or there is None or at is None or one.scope != function.scope or kept[1].attr is None:
            continue
        if kept[1].is_tensor and kept[1].place.is_host and kept[1].zero is False and at.is_there:
            meeting = Meeting(node, f"`{function.name}`", *kept, *there)
            frame.facts.perhaps.setdefault((node, kept[0]), meeting)


def _may_stay(frame: Frame, node: cst.Call, receiver: Value | None) -> bool:
    if _is_built_here(frame, receiver) or _is_kept(frame, node, receiver):
        return True
    return _is_built_by_file(frame, node, receiver)


def _meet_there(
    frame: Frame,
    node: cst.Call,
    function: Function,
    given: dict[str, Operand],
    pairs: list[tuple[Place, Place | None, Place, Place | None]],
) -> None:
    """``DEVICE = torch.device("cuda")``, ``def train(net, x): net(x.to(DEVICE))``: ``train(Net(), x)``."""
    for param, handed, there, replaced in pairs:
        if handed is None or not handed.is_host or replaced is not None or not there.is_there or not there.name:
            continue
        operand = given.get(param.name)
        if operand is not None and _is_built_here(frame, operand[1]) and modules.may_hold_tensors(operand[1]):
            frame.met(node, f"`{function.name}`", operand, (node.func, Value(THING, there, node)))


def _is_built_here(frame: Frame, module: Value | None) -> bool:
    """Whether each call of the function that is followed builds the module anew, and nothing has moved it since."""
    if module is None or module.kind != MODULE or module.obj is not module.origin or frame.function is None:
        return False
    return isinstance(module.origin, cst.Call) and frame.flow.function(module.origin) is frame.function


def _is_kept(frame: Frame, node: cst.Call, module: Value | None) -> bool:
    """Whether an object that is no module keeps the module as it built it: ``self.net = Net()``."""
    if module is None or module.kind != MODULE or frame.cls is None or frame.cls.is_module:
        return False
    maker = frame.flow.function(module.origin) if isinstance(module.origin, cst.Call) else None
    key = frame.key(node.func) or ""
    return module.obj is module.origin and maker is not None and maker.cls is frame.cls and key.startswith("self.")


def _is_built_by_file(frame: Frame, node: cst.Call, module: Value | None) -> bool:
    """Whether the file builds a module as it is run, and has it under a name: ``net = Net()`` outside of functions."""
    if module is None or module.kind != MODULE or module.obj is not module.origin:
        return False
    by_file = isinstance(module.origin, cst.Call) and frame.flow.function(module.origin) is None
    return by_file and isinstance(node.func, cst.Name)


def _note_default(frame: Frame, node: cst.Call, function: Function, given: dict[str, Operand], args: Args) -> None:
    """A function that takes a device is called without one."""
    for param in function.params:
        name = param.name.value
        if name in ("device", "torch_device") and param.default is not None:
            told = name in given or args.starred or name in function.assigned  # if device is None: device = x.device
            if not told and not frame.dead:
                frame.facts.left_at_default[node] = (function, param)
            return


def given_to(node: cst.Call, function: Function, args: Args, receiver: Value | None) -> dict[str, Operand]:
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


def _is_moved_at_once(frame: Frame, node: cst.Call) -> bool:
    """``encode(positions).to(device)``: who moves what it gives may hand it what is on the host."""
    parents = frame.scope.source.parents
    method = parents.get(node)
    called = parents.get(method) if isinstance(method, cst.Attribute) and method.attr.value in table.MOVES else None
    return isinstance(called, cst.Call) and called.func is method


def hint(function: Function, given: dict[str, Operand], caller: Frame, *, moved: bool = False) -> None:
    """Callers tell what parameters are that nothing else tells. ``moved``: what it gives is, at once."""
    told = caller.function is not None and caller.function.is_told_device
    for name, (node, value) in given.items():
        if value.kind == UNKNOWN_KIND and isinstance(node, cst.Attribute | cst.Subscript):
            function.handed_parts.add(name)
        if moved and not value.place.is_there:
            function.handed_parts.add(name)
        if value.kind == LOADER and value.place.is_host:
            function.loaders[name] = join(function.loaders.get(name, value), value)
        if value.kind == MODULE and isinstance(value.ref, Class):
            function.handed_modules.setdefault(name, set()).add(value.ref)
        inner = element(value) if value.kind in (LIST, TUPLE) else value
        # def table(layout, device): return rows(layout).to(device)   what comes beside a device may be on the host
        if inner.holds_tensors and (inner.place.is_host or (told and inner.place.kind == "param")):
            function.handed_host.add(name)
    hints = {
        name: "elsewhere" if v.place.is_host or (moved and not v.place.is_there) else "there"
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


def devices_told(frame: Frame, node: cst.Call, cls: Class, args: Args) -> dict[str, Place]:
    """The devices that a new object keeps as its constructor was told them: ``Weigher(device=torch.device("cpu"))``."""
    init = cls.find_method("__init__")
    if init is None or not init.is_told_device:
        return {}
    given = given_to(node, init, args, Value(SELF, ref=cls))
    told = {}
    for param in init.params:
        place = Place("device", name := param.name.value, init.scope)
        kept = [a for c in cls.lineage for a, v in c.attrs.items() if v.kind == DEVICE and v.place == place]
        if kept:
            at = _argument_place(frame, given.get(name), param, args, False)
            told.update(dict.fromkeys(kept, at))
    return told


def _takes_device(param: cst.Param) -> bool:
    name = param.name.value
    return hypothesis.names_device(name) or hypothesis.numbers_device(name)


def _argument_place(frame: Frame, pair: Operand | None, param: cst.Param, args: Args, is_tensor: bool) -> Place:
    if pair is not None:
        value = pair[1]
        if is_tensor and not value.holds_tensors:
            return UNKNOWN_PLACE  # a number, say: where the result lives is for others to tell
        if value.kind == DATA and value.text is None and not _takes_device(param):
            return UNKNOWN_PLACE  # surrogate(x, threshold=1.0)
        if value.kind in (DEVICE, DATA) or (value.kind == UNKNOWN_KIND and isinstance(pair[0], cst.BaseExpression)):
            return frame.device_place(value, pair[0])
        if value.kind in (LIST, TUPLE) and (each := element(value)).kind == TENSOR:
            return each.place
        return value.place
    if args.starred:
        return UNKNOWN_PLACE
    default = param.default
    if isinstance(default, cst.SimpleString):
        return from_string(str(default.evaluated_value))
    return UNKNOWN_PLACE
