"""What a call gives: sorted by what is called, a name of a package, a value, or a method of one.

Calling may evaluate anything, so that the modules of the interpreter import each other; they do so as whole modules
(``from devlint.flow import expressions``), which are complete by the time anything is followed.
"""

from __future__ import annotations

import re

import libcst as cst

from devlint.flow import (
    arrays,
    attributes,
    builtin_calls,
    copies,
    expressions,
    hypothesis,
    loaders,
    methods,
    modules,
    moves,
    operations,
    outside,
    project_calls,
    suppositions,
    torch_calls,
)
from devlint.flow.arguments import Args, Operand
from devlint.flow.frame import Frame
from devlint.flow.place import UNKNOWN_PLACE
from devlint.flow.scope import Function
from devlint.flow.value import (
    ARRAY,
    CLASS,
    DATA,
    DEVICE,
    DICT,
    DTYPE,
    FUNCTION,
    GENERATOR,
    HOST_DATA,
    INSTANCE,
    LIST,
    MODULE,
    NAME,
    NONE,
    PARTIAL,
    SELF,
    SUPER,
    TENSOR,
    THING,
    TUPLE,
    UNKNOWN,
    UNKNOWN_KIND,
    Value,
    element,
)


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
    func = node.func
    if type(func) is cst.Attribute:
        receiver = expressions.evaluate(frame, func.value)
        name = func.attr.value
        known = None
        if frame.flow.has_paths:
            key = frame.key(func)
            known = frame.lookup(key) if key is not None else None
        if known is not None:
            frame.values[func] = known
            return call_value(frame, node, known, arguments(frame, node))
        if receiver.kind == NAME:
            value = attributes.attribute(frame, func, receiver, name)
            frame.values[func] = value
            if value.kind == NAME:
                return _named_call(frame, node, value.ref, arguments(frame, node))
            return call_value(frame, node, value, arguments(frame, node))
        return methods.call(frame, node, func, receiver, name)
    if type(func) is cst.Name:
        name = func.value
        bound = frame.lookup(name)
        if bound is None:
            qualified = frame.scope.imports.get(name)
            if qualified is not None:
                return _named_call(frame, node, qualified, arguments(frame, node))
            if name == "reveal_device" and node.args:
                shown = expressions.evaluate(frame, node.args[0].value)
                frame.facts.reveals[node] = shown
                return shown
            if name == "super":
                return Value(SUPER, frame.self_place, ref=frame.cls)
            return builtin_calls.call(frame, node, name, arguments(frame, node))
        frame.values[func] = bound
        return call_value(frame, node, bound, arguments(frame, node))
    return call_value(frame, node, expressions.evaluate(frame, func), arguments(frame, node))


def arguments(frame: Frame, node: cst.Call) -> Args:
    """Evaluate the arguments of a call."""
    positional: list[Operand] = []
    keywords: dict[str, Operand] = {}
    starred = False
    for arg in node.args:
        value = expressions.evaluate(frame, arg.value)
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
            elif value.kind == THING:
                keywords.setdefault("**", (arg.value, value))  # model(**inputs)
        elif arg.keyword is not None:
            keywords[arg.keyword.value] = (arg.value, value)
        else:
            positional.append((arg.value, value))
    return Args(positional, keywords, starred)


def call_value(frame: Frame, node: cst.Call, value: Value, args: Args) -> Value:
    """Call what an expression turned out to be."""
    kind = value.kind
    if kind == NAME:
        return _named_call(frame, node, value.ref, args)
    if kind == FUNCTION:
        if isinstance(value.ref, Function):
            return project_calls.call(frame, node, value.ref, args, receiver=value.items)
        return expressions.call_lambda(frame, value.ref, args)
    if kind == PARTIAL:
        first: Args = value.items
        keywords = {**first.keywords, **args.keywords}
        joined = Args(first.positional + args.positional, keywords, first.starred or args.starred)
        return call_value(frame, node, value.ref, joined)
    if kind == CLASS:
        return modules.construct(frame, node, value.ref, args)
    if kind == MODULE:
        return modules.call(frame, node, value, args)
    if kind == SELF:
        return _call_self(frame, node, value, args)
    if kind == THING:
        # something moved by `.to()` that is called: a module, or a pipeline, which may give arrays and images
        called = frame.key(node.func) or ""
        named = hypothesis.MODEL_NAME.match(called.rpartition(".")[2]) is not None
        given = [frame.values.get(arg.value, UNKNOWN) for arg in node.args]
        fed = any(_has_tensors(each) or (named and each.kind not in _NO_TENSORS) for each in given)
        is_pipeline = hypothesis.PIPELINE_NAME.search(called) is not None
        if value.ref == "moved" and not is_pipeline:
            modules.feed(frame, node, node.func, value.but(kind=MODULE, ref=None), args)
        if value.place.is_there and any(each.kind == TENSOR and each.place.is_host for each in given):
            return UNKNOWN  # it refuses what is on the host, or knows itself where to put things
        return Value(THING, value.place, node) if fed and not is_pipeline else UNKNOWN
    if kind == INSTANCE and value.ref is not None:
        method = value.ref.find_method("__call__")
        if method is not None:
            return project_calls.call(frame, node, method, args, receiver=value)
    if value.text == _UNPICKLED:
        return UNKNOWN  # loss_metric = pickle.load(file): what it is called says nothing of what calling it gives
    return unknown_call(frame, node, args)


#: ``text`` of an object of unknown class, read from a file or from bytes.
_UNPICKLED = "unpickled"
_NO_TENSORS = frozenset({DATA, ARRAY, NONE, DTYPE, DEVICE, GENERATOR})


def _has_tensors(value: Value) -> bool:
    """A tensor, or a container of some."""
    if value.kind == DICT:
        return any(item.holds_tensors for item in value.items.values())
    return value.holds_tensors or (value.kind in (LIST, TUPLE) and element(value).holds_tensors)


def unknown_call(frame: Frame, node: cst.Call, args: Args) -> Value:
    """A call of something that cannot be followed."""
    for operand, value in args.all:
        moves.escape(frame, node, operand, value)
    if "return_tensors" in args.keywords:
        return loaders.encoded(frame, node, args)
    name = node.func.attr.value if isinstance(node.func, cst.Attribute) else getattr(node.func, "value", "")
    # criterion = ChainObjective.apply: the `forward` of an autograd function makes what it likes, where it likes
    written_by_hand = frame.facts.names.get(node, "").endswith(".apply")
    if isinstance(name, str) and hypothesis.LOSS_NAME.search(name) and not written_by_hand:
        # `criterion(model(x), y)`: what is computed from tensors that are there is there
        there = next((p for p in args.positional if p[1].holds_tensors and p[1].place.is_there), None)
        if there is not None:
            frame.leave_behind(node, args.positional, "a loss", there)
        operands = [value for _, value in args.positional if value.holds_tensors]
        if operands and all(value.place.is_there for value in operands):
            return Value(THING, operands[0].place, node)
    return suppositions.of_call(frame, node, args.all)


#: Models of transformers and diffusers, loaded by name; no tokenizers, configurations or pipelines.
_MODEL_OF_HUB = re.compile(r"\.(\w*Model|\w+For[A-Z]\w+|\w+LMHeadModel|AutoencoderKL)\.from_pretrained$")


def _call_self(frame: Frame, node: cst.Call, value: Value, args: Args) -> Value:
    """``self(x)``: a module's ``forward``."""
    cls = value.ref
    method = cls.find_method("forward" if cls.is_module else "__call__") if cls is not None else None
    result = project_calls.call(frame, node, method, args, receiver=value) if method is not None else UNKNOWN
    if result.kind == UNKNOWN_KIND and cls is not None and cls.is_module:
        # what has nothing that moves gives what is where it was handed something
        return UNKNOWN if modules.holds_nothing(cls) else Value(THING, value.place, node, ref="output")
    return result


def _matters(frame: Frame, node: cst.Call, args: Args) -> bool:
    """Whether anything may come of a call: what it gives is used, or it is given what it could move or mix."""
    if type(frame.flow.source.parents.get(node)) is not cst.Expr:
        return True
    return any(value.kind == MODULE or value.holds_tensors for _, value in args.all)


def _named_call(frame: Frame, node: cst.Call, name: str, args: Args) -> Value:
    """Call a function or class by its qualified name."""
    if not frame.dead:
        frame.facts.calls.setdefault(name, []).append(node)
        frame.facts.names[node] = name
    if name.startswith("torch."):
        return torch_calls.call(frame, node, name, args)
    if name.startswith("numpy."):
        return arrays.numpy_call(frame, node, name, args)
    if name == "functools.partial" and args.positional:
        return Value(PARTIAL, ref=args.positional[0][1], items=args._replace(positional=args.positional[1:]))
    if name in ("copy.deepcopy", "copy.copy"):
        value = args.value(0) or UNKNOWN
        return value.but(obj=node) if value.kind == MODULE else value
    if name.partition(".")[0] in ("pickle", "cloudpickle", "dill", "joblib") and name.endswith((".load", ".loads")):
        return Value(UNKNOWN_KIND, text=_UNPICKLED)
    if name.rpartition(".")[2] in ("tqdm", "trange", "track") or name == "itertools.cycle":
        return args.value(0, "iterable") or HOST_DATA
    if name == "itertools.islice":
        return args.value(0) or UNKNOWN
    if name == "itertools.chain":
        chained = [v for _, v in args.positional]
        return chained[0] if len(chained) == 1 else Value(TUPLE, items=chained)
    if name.startswith(("math.", "random.", "os.", "time.", "json.", "re.", "collections.OrderedDict", "pathlib.")):
        if name.startswith("math."):
            for operand, value in args.positional:
                if value.kind == TENSOR:
                    frame.wait(node, name, operand, value, explicit=False)
        return HOST_DATA if not name.startswith("collections.") else UNKNOWN
    if name in outside.LOADERS:
        return loaders.build(frame, node, name, args)
    found = arrays.library_call(frame, node, name, args)
    if found is not None:
        return found
    if frame.flow.definition(name) is None:
        operation = outside.OPERATIONS.get(name)
        if operation is not None:
            return operations.call(frame, node, name, operation, args)
        found = outside.call(frame, node, name, args)
        if found is not None:
            return found
    if name == "accelerate.Accelerator":
        return Value(INSTANCE, ref=None, text="accelerator")
    if any("Pipeline" in part for part in name.split(".")):
        # no module, whatever the name it is held in: what it gives may be images and arrays
        return Value(INSTANCE, ref=None, text="pipeline")
    if name.startswith(("transformers.", "diffusers.")) and _MODEL_OF_HUB.search(name):
        return modules.pretrained(frame, node, name, args)
    if name.startswith("torchmetrics."):
        return modules.metric(frame, node, name, args)
    function = frame.scope.function_names.get(name)
    if function is not None:
        return project_calls.call(frame, node, function, args, receiver=None)
    unit = frame.flow.built_or_called(name) if _matters(frame, node, args) else None
    if unit is not None and unit.function is not None:
        return project_calls.call(frame, node, unit.function, args, receiver=None)
    if unit is not None and unit.cls is not None:
        return modules.construct(frame, node, unit.cls, args)
    if frame.flow.names_module(name):
        return Value(MODULE, UNKNOWN_PLACE, node, obj=node, text=modules.NOT_FOLLOWED)
    return unknown_call(frame, node, args)
