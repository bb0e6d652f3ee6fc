"""Modules: built, of torch and of the project, given parameters and parts, called, and asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import libcst as cst

from devlint.flow import attributes, calls, copies, moves, outside, project_calls
from devlint.flow import torch_table as table
from devlint.flow.arguments import Args, Operand
from devlint.flow.facts import Feeding
from devlint.flow.frame import Frame
from devlint.flow.operations import of_one_size, parts_of
from devlint.flow.place import HOST, UNKNOWN_PLACE, Place
from devlint.flow.scope import CONSTRUCTOR, Class, Function
from devlint.flow.value import (
    DATA,
    DEVICE,
    DICT,
    DTYPE,
    HOST_DATA,
    INSTANCE,
    LIST,
    MODULE,
    NONE,
    NOTHING,
    PARAMS,
    SELF,
    TENSOR,
    THING,
    TUPLE,
    UNKNOWN,
    UNKNOWN_KIND,
    Value,
    any_of,
    element,
    join,
    modules_in,
    tensor,
)


def build(frame: Frame, node: cst.Call, name: str, fact: table.ModuleFact, args: Args) -> Value:
    """``nn.Linear(...)``: a module of torch's, by the table."""
    if name in ("torch.nn.DataParallel", "torch.nn.parallel.DistributedDataParallel"):
        return wrapped(args, node)
    given = args.get(None, "device")
    place = HOST
    if given is not None and given[1].kind != NONE:
        place = frame.device_place(given[1], given[0])
    elif args.starred:
        place = UNKNOWN_PLACE
    elif fact.kind != "container":
        place = frame.default_place()
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
    zero = None
    holds = fact.tensors == "always" or any(_holds(v) for _, v in args.all)
    if fact.tensors == "argument":
        given_tensors = [v for _, v in args.all if v.kind in (TENSOR, THING)]
        if given_tensors:
            place = given_tensors[0].place
            holds = holds or fact.kind == "loss"
            # a weight for each class has a dimension; for `pos_weight=` a number will do
            zero = given_tensors[0].zero if name.startswith("torch.nn.BCE") else False
    _put_in(frame, node, args)
    return Value(MODULE, place, node, ref=name, obj=node, items=held, holds=holds, zero=zero)


def metric(frame: Frame, node: cst.Call, name: str, args: Args) -> Value:
    """A metric of torchmetrics whose states are tensors that its constructor makes."""
    known = name.rpartition(".")[2] in outside.METRICS and args.get(None, "multidim_average") is None
    return Value(MODULE, frame.default_place(), node, ref=name, obj=node, holds=True) if known else UNKNOWN


def pretrained(frame: Frame, node: cst.Call, name: str, args: Args) -> Value:
    """``AutoModel.from_pretrained(...)`` of transformers and its kin: on the host unless told otherwise."""
    placed = args.starred or any(word in key for key in args.keywords for word in ("device", "quantiz", "load_in"))
    return Value(MODULE, UNKNOWN_PLACE if placed else frame.default_place(), node, ref=name, obj=node, holds=True)


def is_loss_or_metric(name: str) -> bool:
    """Whether a class of this full name is one of torch's losses, or of torchmetrics: it judges, and is not trained."""
    fact = table.MODULES.get(name)
    return name.startswith("torchmetrics.") or (fact is not None and fact.kind == "loss")


def _of_torchmetrics(module: Value) -> bool:
    return isinstance(module.ref, str) and module.ref.startswith("torchmetrics.")


def wrapped(args: Args, node: cst.Call) -> Value:
    """DataParallel and its kin: the module they wrap, behind a call that moves its inputs."""
    inner = args.value(0, "module") or UNKNOWN
    return Value(MODULE, inner.place, node, obj=inner.obj or node, text=MOVES_ITS_INPUTS)


#: What is known of a module besides where it is.
MOVES_ITS_INPUTS = "moves its inputs"
#: Of the project, and not looked into: inputs behind the first may be indices or lengths, which may stay on the host.
NOT_FOLLOWED = "not followed"


def construct(frame: Frame, node: cst.Call, cls: Class, args: Args) -> Value:
    """``Net(...)`` of the project."""
    init = cls.find_method("__init__")
    if init is not None and init.home is frame.flow:
        project_calls.hint(init, project_calls.given_to(node, init, args, Value(SELF, ref=cls)), frame)
    frame.flow.evaluate_class(cls)
    if not cls.is_module:
        devices = project_calls.devices_told(frame, node, cls, args)
        return Value(INSTANCE, UNKNOWN_PLACE, node, ref=cls, obj=node, items=devices)
    _put_in(frame, node, args)
    constructors = [method for c in cls.lineage if (method := c.methods.get("__init__")) is not None]
    parts = [v for c in cls.lineage for v in c.attrs.values() if v.kind == MODULE or v.ref == "parameter"]
    # parameters made on a device that the constructor is told, or chooses, and parts that are elsewhere
    elsewhere = (
        args.starred
        or cls.of_unknown_base
        or (cls.home is not frame.flow and bool(cls.project_bases))
        or any(method.device_aware or "to" in method.attributes.get("self", ()) for method in constructors)
        or any(part.place.is_there for part in parts)
        # a part of unknown make takes nothing from what is known of one that is on the host
        or (any(not part.place.is_host for part in parts) and not any(_is_on_host(part) for part in parts))
    )
    return Value(MODULE, UNKNOWN_PLACE if elsewhere else frame.default_place(), node, ref=cls, obj=node)


def _is_on_host(part: Value) -> bool:
    return part.place.is_host and (part.kind != MODULE or has_tensors(part))


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


def may_hold_tensors(value: Value) -> bool:
    """A module, and none of torch's that has no tensors: ``nn.L1Loss()``."""
    if value.kind != MODULE:
        return False
    fact = table.MODULES.get(value.ref) if isinstance(value.ref, str) else None
    return fact is None or value.holds or fact.tensors in ("default", "children")


def has_tensors(value: Value, above: tuple[Class, ...] = ()) -> bool:
    """Whether a module surely has parameters or buffers, its own or those of its parts; a number for a buffer does not
    count, since it mixes with tensors anywhere."""
    if value.holds:
        return value.zero is not True  # nn.BCEWithLogitsLoss(pos_weight=torch.tensor(5.0))
    if isinstance(value.ref, str):
        fact = table.MODULES.get(value.ref)
        made = value.obj
        # nn.LayerNorm(8, elementwise_affine=False) has none
        plain = not (
            isinstance(made, cst.Call) and any(a.keyword is not None and "affine" in a.keyword.value for a in made.args)
        )
        return fact is not None and fact.tensors == "default" and plain
    if not isinstance(value.ref, Class) or value.ref in above:
        return False
    held = [v for cls in value.ref.lineage for v in cls.attrs.values()]
    return any(
        has_tensors(v, (*above, value.ref))
        if v.kind == MODULE
        else v.kind == TENSOR and (v.ref == "parameter" or (v.ref == "buffer" and v.zero is not True))
        for v in held
    )


def holds_nothing(cls: Class) -> bool:
    """Whether a class surely has no parameters, buffers or parts: its modules have nothing to move."""
    held = [value for each in cls.lineage for value in each.attrs.values()]
    return (
        cls.known_whole
        and not any(each.sets_by_variable or each.buffers or each.buffers_by_variable for each in cls.lineage)
        and all(value.is_data or value.kind in (NONE, DTYPE, DEVICE) for value in held)
    )


def register(frame: Frame, node: cst.Call, cls: Class, name: str, args: Args) -> Value:
    """``self.register_buffer("mask", mask)`` and its kin."""
    given = args.get(0, "name")
    value = args.value(1, "tensor", "param", "module", "default") or UNKNOWN
    if given is not None and given[1].text is None:
        cls.buffers_by_variable = True
    if given is not None and given[1].text is not None:
        cls.buffers.add(given[1].text)
        if name == "add_state" and value.kind == LIST:
            cls.list_states.add(given[1].text)
        if _is_told_host(frame, value):
            value = Value(UNKNOWN_KIND, UNKNOWN_PLACE, node)
        elif value.kind in (TENSOR, THING, UNKNOWN_KIND, DATA, NONE):
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


def _is_told_host(frame: Frame, value: Value) -> bool:
    """``self.register_buffer("scored", torch.zeros(n, device="cpu"))``: of what is meant to run on the host."""
    made = value.origin
    told = (arg for arg in made.args if arg.keyword and arg.keyword.value == "device") if type(made) is cst.Call else ()
    return value.is_tensor and any(frame.flow.value(arg.value).place.is_host for arg in told)


def call(frame: Frame, node: cst.Call, module: Value, args: Args) -> Value:
    """``model(x)``."""
    operands = [*args.positional, *args.keywords.values()]
    reference = module.ref
    feed(frame, node, node.func, module, args)
    use(frame, node, node.func, module, "a call of the module")
    if operands and operands[0][1].place.is_there and module.place.is_there and takes_inputs(frame, module):
        frame.leave_behind(node, operands[1:], "a call of the module", (node.func, module))
    if _of_torchmetrics(module):
        frame.meet(node, [(node.func, module), *operands], "an update of the metric", strict=True)
        return UNKNOWN
    if not (isinstance(reference, str) and reference in table.MODULES):
        copies.may_be_done(frame)
    if isinstance(reference, str):
        fact = table.MODULES.get(reference)
        holds = module.holds
        first = [pair for pair in args.positional[:1] if pair[1].holds_tensors]
        if fact is not None and fact.kind == "loss":
            if reference in table.OF_ONE_SIZE:
                operands = of_one_size(operands)
            fed = [(node.func, module), *operands] if holds else operands
            if reference == "torch.nn.CTCLoss":
                fed = operands[:1]  # targets and lengths may be on the host: cuDNN wants them there
            numbers = reference in table.OF_TWO_NUMBERS and any(value.zero for _, value in operands)
            strict = reference in table.STRICT_LOSSES and not numbers
            chosen = frame.meet(node, fed, f"`{reference}`", strict=strict)
            if chosen is None:
                return Value(THING, UNKNOWN_PLACE, node)
            return tensor(chosen.place, chosen.origin, zero=True)
        if holds:
            # masks and states must be there as well as the input; what a container hands on is for its parts to say
            takes_all = fact is not None and fact.kind in ("layer", "recurrent")
            if fact is not None and fact.kind == "recurrent":
                operands = [part for operand in operands for part in parts_of(operand)]  # self.lstm(x, (h0, c0))
            fed = operands if takes_all else [pair for pair in first or operands[:1] if not pair[1].zero]
            frame.meet(node, [(node.func, module), *fed], f"`{reference}`", strict=True)
        elif reference in table.COMPARING:
            strict = table.FUNCTIONS[table.COMPARING[reference]].strict
            frame.meet(node, operands, f"`{reference}`", strict=strict)
        if not holds and first and not module.place.is_there:
            return Value(THING, first[0][1].place, node)
        # scores = self.cosine(kept[a], kept[b])   outside of steps, what was kept may have been brought to the host
        unplaced = module.place.is_host or not _is_plain_step(frame)
        if fact is not None and fact.kind != "container" and unplaced and not first and not may_hold_tensors(module):
            return tensor(UNKNOWN_PLACE, node) if fact.kind == "layer" else Value(THING, UNKNOWN_PLACE, node)
        is_layer = fact is not None and fact.kind == "layer"
        if is_layer and first and not may_hold_tensors(module) and not _is_plain_step(frame):
            # patches = self.unfold(read(image)[None]), def forward(self, x): rows = self.compare(x.cpu()); return
            # self.softmax(rows)   what has nothing of its own leaves them where they are
            return tensor(first[0][1].place, node)
        if is_layer and reference not in _TUPLE_LAYERS:
            weighted = holds and reference != "torch.nn.PReLU"  # whose results have a dimension
            return tensor(_output_place(frame, module, first), node, zero=False if weighted else None)
        if fact is not None and fact.kind == "recurrent":
            return Value(THING, _output_place(frame, module, first), node)
    elif isinstance(reference, Class):
        if any("__call__" in cls.attrs_of_class for cls in reference.lineage):
            return UNKNOWN
        own_call = reference.find_method("__call__")
        if own_call is not None:  # def __call__(self, x): return self.net(x).cpu().numpy()
            return project_calls.call(frame, node, own_call, args, receiver=module)
        forward = reference.find_method("forward")
        if forward is not None:
            given = project_calls.call(frame, node, forward, args, receiver=module)
            if given.kind in (TENSOR, THING) and given.place.is_known:
                return given
            if given.kind in (TUPLE, DICT, LIST) or given.is_data:
                return given
            if forward.summary is not None and forward.summary.gives_data:
                return UNKNOWN  # if len(x) < 20: return np.zeros(len(x)); return self.cluster(x)
            if holds_nothing(reference):
                module = module.but(place=UNKNOWN_PLACE)  # Distance().to(device)(a, b): there is nothing that moves
            return _output(module, operands, node)
    if reference is None and operands and all(value.is_data for _, value in operands):
        return UNKNOWN  # model(prompt="a cat", steps=3): a pipeline, which gives images
    if module.place.is_there and module.text != MOVES_ITS_INPUTS and not frame.scope.wraps_models:
        # a module of unknown make that was moved; sequence lengths stay on the host for packing
        for operand, value in operands if module.text is None else operands[:1]:
            host = project_calls.on_host(frame, node, value, value.place)  # be it where nothing else was handed in
            if host is None or host.kind != TENSOR or host.zero is not False:
                continue  # self.seen(torch.tensor(count))   what has no dimensions may be added to anything
            if not _is_length(frame.key(operand)):
                frame.met(node, "a call of the module", (operand, host), (node.func, module))
    elif module.place.kind == "param" and operands:
        value = operands[0][1]
        if value.kind == TENSOR or (value.kind == THING and value.place.is_there):
            frame.constrain((node.func, module), operands[0])
    return _output(module, operands, node)


def use(frame: Frame, node: cst.Call, operand: cst.BaseExpression, module: Value, what: str) -> None:
    """``net.to(device); net.head = nn.Linear(8, 2); net(x)``: a part was put in after the move, and is on the host."""
    key = frame.key(operand)
    if key is None or not module.place.is_there or not frame.flow.has_paths:
        return
    for name, value in (frame.env or {}).items():
        part = value.origin
        is_part = name.startswith(f"{key}.") and value.kind == MODULE and value.place.is_host
        if is_part and isinstance(part, cst.Call) and part is value.obj and has_tensors(value):
            frame.met(node, what, (part, value), (operand, module))


def _is_plain_step(frame: Frame) -> bool:
    """Whether this is a step that moves nothing: what it computes with is where the module is."""
    function = frame.function
    return function is not None and (function.name == "forward" or function.is_step) and not function.moves_something


def feed(frame: Frame, node: cst.Call, module_node: cst.BaseExpression, module: Value, args: Args) -> None:
    """Remember what a moved module is handed first: a batch may hold names and lengths behind its tensors."""
    if frame.dead or not module.place.is_there or not takes_inputs(frame, module):
        return
    for operand, value in args.positional[:1] or args.keywords.values():
        if value.kind == DICT:
            value = any_of(value)
        if value.holds_tensors:
            if value.place.is_known:
                feeding = Feeding(node, module_node, module, operand, value)
                frame.facts.feedings[node, operand] = feeding
            return


def takes_inputs(frame: Frame, module: Value) -> bool:
    """Whether nothing around the module moves what it is called with."""
    return module.text != MOVES_ITS_INPUTS and not frame.scope.wraps_models


def takes_as_is(module: Value) -> bool:
    """Whether a module surely has tensors, leaves its inputs where they are, and computes with the first of them."""
    if isinstance(module.ref, str):
        return module.ref not in table.MODULES or has_tensors(module)
    if not isinstance(module.ref, Class) or not module.ref.known_whole:
        return False
    if not has_tensors(module):
        return False
    rebuilds = any(method.rebuilds for method in _methods(module.ref))
    return not (moves_by_itself(module) or rebuilds) and _mixes_first(module.ref)


def moves_by_itself(module: Value) -> bool:
    """Whether a method moves anything: ``def forward(self, x): x = x.to(next(self.parameters()).device)``"""
    return isinstance(module.ref, Class) and any(method.moves_something for method in _methods(module.ref))


def _methods(cls: Class) -> Iterator[Function]:
    """All but the constructors."""
    for each in cls.lineage:
        yield from (method for method in each.methods.values() if method.role != CONSTRUCTOR)


def _mixes_first(cls: Class) -> bool:
    """Whether what ``forward`` is handed first has to be where the module is: not ``return self.rows[index]``, nor
    ``self.rows * max(sizes.tolist())``."""
    forward = cls.find_method("forward")
    if forward is None or forward.summary is None:
        return False
    handed = [param.name.value for param in forward.positional[forward.takes_self :]][:1]
    pairs = ({place.name for place in pair} for pair in forward.summary.constraints)
    return any("self" in names and not names.isdisjoint(handed) for names in pairs)


def _is_length(key: str | None) -> bool:
    return key is not None and "len" in key


def _output(module: Value, operands: list[Operand], node: cst.Call) -> Value:
    place = module.place
    if place.is_host and module.ref is None and not module.holds:
        place = UNKNOWN_PLACE  # loss = nn.MSELoss() if plain else nn.L1Loss()   such have no tensors, and follow inputs
    if not place.is_known:
        known = [v.place for _, v in operands if v.holds_tensors and v.place.is_there]
        place = known[0] if known else place
    return Value(THING, place, node, ref="output")


_TUPLE_LAYERS = frozenset({"torch.nn.MultiheadAttention"})


def _output_place(frame: Frame, module: Value, first: list[Operand]) -> Place:
    place = first[0][1].place if first else UNKNOWN_PLACE
    if module.place.kind == "device" and place.is_host and first[0][1].origin in frame.facts.moves:
        return UNKNOWN_PLACE  # self.head(x.cpu())   a part that is kept on the host
    if module.place.is_there or not first:
        return module.place
    return place if place.is_there else module.place if module.place.is_known else place


def method(frame: Frame, node: cst.Call, func: cst.Attribute, module: Value, name: str, args: Args) -> Value:
    """A method of a module: of the project's own, or what ``nn.Module`` gives every module."""
    if isinstance(module.ref, Class):
        own = module.ref.find_method(name)
        if own is not None and not own.is_property:
            returned = project_calls.call(frame, node, own, args, module)
            if _moves_self(module.ref, own):
                moves.escape(frame, node, func.value, module)  # model.place(device)
            return returned
    if name in ("parameters", "buffers"):
        return Value(
            PARAMS, module.place, node, obj=module.obj if module.obj is not None else _whole(frame, func.value)
        )
    if name in ("named_parameters", "named_buffers"):
        return Value(LIST, items=Value(TUPLE, items=[HOST_DATA, tensor(module.place, node, obj=module.obj)]))
    if name == "state_dict":
        return Value(DICT, items={"*": tensor(module.place, node)})
    if name in _CHAINS:
        return module
    if name in ("modules", "children"):
        return Value(LIST, items=Value(MODULE, module.place, module.origin))
    if isinstance(module.ref, str) and name in ("generate", "get_image_features", "get_text_features"):
        feed(frame, node, func.value, module, args)
        return Value(THING, module.place, node, ref="output") if module.place.is_known else UNKNOWN
    if name == "to_empty":
        given = args.get(0, "device")
        place = frame.device_place(given[1], given[0]) if given is not None else UNKNOWN_PLACE
        return moves.move_module(frame, node, func, module, place)
    if name in ("append", "extend", "insert", "load_state_dict", "zero_grad", "apply", "__len__"):
        return module if name == "apply" else UNKNOWN
    if name == "forward" or (name == "update" and _of_torchmetrics(module)):
        return call(frame, node, module, args)
    if name in ("items", "values"):
        inner = Value(MODULE, module.place, module.origin)
        return Value(LIST, items=Value(TUPLE, items=[HOST_DATA, inner]) if name == "items" else inner)
    value = attributes.attribute(frame, func, module, name)
    if value.kind != UNKNOWN_KIND:
        return calls.call_value(frame, node, value, args)
    if name not in _STAYS:
        moves.escape(frame, node, func.value, module)  # model.enable_group_offload(device)
    return UNKNOWN


def _moves_self(cls: Class, method: Function) -> bool:
    """Whether a method moves the module that it is called on, itself or through another one."""
    return any(not _MOVES.isdisjoint(each.self_calls) for each in cls.reached(method))


def _whole(frame: Frame, part: cst.BaseExpression) -> Any:
    """The identity of the module that ``model.backbone`` is a part of: both move with it."""
    while type(part) is cst.Attribute:
        part = part.value
        value = frame.values.get(part)
        if value is not None and value.kind == MODULE and value.obj is not None:
            return value.obj
    return None


_MOVES = table.MOVES | {"to_empty"}
#: Methods of modules, metrics and containers that move nothing.
_STAYS = frozenset(
    "add_module call_super_init extra_repr get_buffer get_extra_state get_parameter get_submodule modules "
    "named_children named_modules register_backward_hook register_buffer register_forward_hook "
    "register_forward_pre_hook register_full_backward_hook register_full_backward_pre_hook register_module "
    "register_parameter register_state_dict_pre_hook set_extra_state clear keys pop add compute reset plot "
    "backward step gradient_checkpointing_enable tie_weights save_pretrained init_weights reset_parameters".split()
)
_CHAINS = frozenset("train eval half float double bfloat16 requires_grad_ share_memory type float16 compile".split())
