"""Which meetings of values on different devices the rules believe in."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from devlint import tree
from devlint.flow.facts import Meeting
from devlint.flow.hypothesis import asks_for_device, names_device
from devlint.flow.names import dotted
from devlint.flow.place import SOMEWHERE
from devlint.flow.scope import CONSTRUCTOR, DEVICE_SIDE, HOST_SIDE, Function
from devlint.rule import Rule
from devlint.rules._exports import records
from devlint.rules._places import is_no_tensor
from devlint.rules._switches import is_switched_off
from devlint.testcode import near

#: Parts of a path where what is handed to a function is on the host: data is read, programs show or try something.
_OF_DATA = re.compile(
    r"(^|[/_])(data|datasets?|dataloaders?|preprocess\w*|(?<!post_)process(ing|ors?)|transforms?|tokeniz\w+)([/_.]|$)"
)
_OF_AUGMENTATION = re.compile(r"(^|[/_])augment")
_OF_TRIALS = re.compile(r"(^|[/_])(scripts?|tools?|tests?|examples?|benchmarks?|tutorials?|docs?|demos?)([/_.]|$)")
#: ``torch.ones(n, device=image.device)``: what makes things where its input is is run with that on a device.
_FOLLOWS = re.compile(r"device ?= ?(?!self\.)[\w.]+\.device\b")
_FOR_HOST = re.compile(r"(^|_)(cpu|host|numpy|np)(_|$)")
#: What brings a model to the host, before it is exported, and what hides every device from a script.
_TO_HOST = re.compile(r"""\.to\(\s*(device=)?["']cpu["']|\bdevice\(\s*["']cpu["']\s*\)""")
_HIDES_DEVICES = re.compile(r"""CUDA_VISIBLE_DEVICES["']\]\s*=\s*["'](-1)?["']""")
_OF_DEVICES = re.compile(r"device|cuda|\.to\(|type_as|accelerat|Lightning", re.IGNORECASE)


def meetings(rule: Rule) -> Iterator[Meeting]:
    """Those that are sure, and those with what a function of the project's device side was handed."""
    if runs_on_host(rule):
        return
    of_test = rule.in_tests
    for meeting in rule.flow.facts.meetings.values():
        if _is_supposed(rule, meeting) and (of_test or _stays_on_host(rule, meeting)):
            continue
        if _is_beside_device(rule, meeting) or is_no_tensor(rule.flow, meeting.node, meeting.there.place.name):
            continue
        if not is_dead(rule, meeting.node):
            yield meeting
    assumed = rule.flow.facts.assumed
    if not assumed or is_of_host(rule):
        return
    aware = _is_aware(rule) or "map_location" in rule.source.text
    for meeting in assumed.values():
        if (aware or _is_annotated(rule, meeting)) and _believed(rule, meeting):
            yield meeting


def doubted(rule: Rule) -> Iterator[Meeting]:
    """Meetings with what a function was handed, where less speaks for that being on a device than for `meetings`: the
    file never speaks of devices, a helper makes what is on the host, ``slopes = get_slopes(heads)``, or what it meets
    is made of what was handed in by something unknown, ``x = pad(x)``."""
    if runs_on_host(rule) or is_of_host(rule):
        return
    of_models, of_images = is_of_models(rule), _OF_AUGMENTATION.search("/".join(near(rule.source.path)))
    sure = {id(each) for each in meetings(rule)}
    for meeting in (*rule.flow.facts.assumed.values(), *rule.flow.facts.supposed.values()):
        function = rule.flow.function(meeting.node)
        if id(meeting) in sure or function is None or function.moves_something:
            continue
        if not of_models and (of_images or not _is_surely_tensor(rule, meeting, function)):
            continue
        if _believed(rule, meeting, of_helpers=True):
            yield meeting


def _is_surely_tensor(rule: Rule, meeting: Meeting, function: Function) -> bool:
    """Whether what was handed in is said to be a tensor, or is used as one where nothing has to do with arrays."""
    if _is_told_tensor(rule, meeting):
        return True
    return "numpy" not in rule.flow.scope.packages and function.is_tensor_by_use(meeting.there.place.name)


def is_of_models(rule: Rule) -> bool:
    """Whether a file is about models: what else never speaks of devices may be for the host alone, as are changes to
    single images."""
    if _OF_AUGMENTATION.search("/".join(near(rule.source.path))):
        return False
    names = {*rule.flow.scope.imports.values()}
    return any(name == "torch.nn" or name.startswith("torch.nn.") for name in names) or "nn.Module" in rule.source.text


def is_of_host(rule: Rule) -> bool:
    """Whether what is handed to the functions of a file is on the host."""
    path = "/".join(near(rule.source.path))
    if _OF_TRIALS.search(path):
        return True
    return _OF_DATA.search(path) is not None and _FOLLOWS.search(rule.source.text) is None


def _is_aware(rule: Rule) -> bool:
    return any(function.device_aware for function in rule.flow.scope.functions.values())


def _is_annotated(rule: Rule, meeting: Meeting) -> bool:
    """``def ranks(x: torch.Tensor)``, be it in the docstring: where nothing in a file has to do with devices, it may be
    for the host alone, unless it says that tensors come in, and has nothing to do with arrays."""
    return "numpy" not in rule.flow.scope.packages and _is_told_tensor(rule, meeting)


def _is_told_tensor(rule: Rule, meeting: Meeting) -> bool:
    """Whether the annotation, or the docstring, says that what was handed in is a tensor."""
    function = rule.flow.function(meeting.node)
    if function is None:
        return False
    param = function.param(meeting.there.place.name)
    return param is not None and (param.annotation is not None or param.name.value in function.documented)


def runs_on_host(rule: Rule) -> bool:
    """``net.to("cpu"); torch.onnx.export(net, torch.zeros(1, 3), file)``, ``environ["CUDA_VISIBLE_DEVICES"] = "-1"``"""
    text = rule.source.text
    exports = records(rule) and _TO_HOST.search(text) is not None
    return exports or ("CUDA_VISIBLE_DEVICES" in text and _HIDES_DEVICES.search(text) is not None)


def _is_supposed(rule: Rule, meeting: Meeting) -> bool:
    """Whether nothing but the hypothesis says that the other side is on a device: a test's modules are made, and stay,
    on the host, where the test does not move them."""
    function = rule.flow.function(meeting.node)
    if function is None or function.device_aware or function.moves_something:
        return False
    scopes = {function.scope, function.cls.scope if function.cls is not None else None}
    place = meeting.there.place  # a module of another file gives what is somewhere
    return place.kind == "device" and (place.scope in scopes or place == SOMEWHERE)


def _is_beside_device(rule: Rule, meeting: Meeting) -> bool:
    """``def table(layout, device): x = torch.zeros(3, device=layout.device) ...; return x.to(device)``: who is told the
    device may be handed a layout that is on the host."""
    function, (of, _, attr) = rule.flow.function(meeting.node), meeting.there.place.name.partition(".")
    if function is None or attr not in ("", "device") or names_device(of):
        return False
    return of in function.param_names and function.is_told_device and function.role != DEVICE_SIDE


def given_back(rule: Rule) -> Iterator[Meeting]:
    """Tensors made on the host that a function returns on one path, and elsewhere ones that follow its input."""
    found = rule.flow.facts.given_back
    if not found or runs_on_host(rule) or is_of_host(rule):
        return
    aware = _is_aware(rule)
    for meeting in found.values():
        runs_there = meeting.there.place.is_there  # in the forward of a module
        is_like = meeting.what == "a copy" and _is_made_like(rule, meeting)
        if not aware and not runs_there and not is_like and not _is_annotated(rule, meeting):
            continue
        if meeting.what == "a list" and not _may_be_skipped(rule, meeting.node):
            continue
        if meeting.what == "a copy" and not is_like:
            continue
        if _believed(rule, meeting) and not _chosen_by_device(rule, meeting):
            yield meeting


def _is_made_like(rule: Rule, meeting: Meeting) -> bool:
    """``torch.zeros(x.shape)``, filled with what is made of ``x``: nothing says that it is for the host.
    What gathers the results of a model, turn by turn, may be."""
    made, name = meeting.host.origin, meeting.there.place.name
    return isinstance(made, cst.Call) and any(
        isinstance(part, cst.Attribute) and part.attr.value in ("dtype", "shape") and dotted(part.value) == name
        for arg in made.args
        for part in tree.walk(arg.value)
    )


def _may_be_skipped(rule: Rule, node: cst.CSTNode) -> bool:
    """Whether a turn of the loop may end before the element is set; where all are set, none stays as it was made."""
    child: cst.CSTNode = node
    above = rule.parent(child)
    while above is not None and not isinstance(above, cst.For | cst.While | cst.FunctionDef):
        if isinstance(above, cst.If):
            return True
        if isinstance(above, cst.IndentedBlock):
            for statement in above.body:
                if statement is child:
                    break
                if any(isinstance(each, cst.Continue) for each in tree.walk(statement)):
                    return True
        child, above = above, rule.parent(above)
    return False


def _chosen_by_device(rule: Rule, meeting: Meeting) -> bool:
    """``if x.is_cuda: return on_gpu(x)``: which of the two is returned may hang on where the input is."""
    for node in (meeting.host_node, meeting.there_node):
        above = rule.parent(node)
        while above is not None and not isinstance(above, cst.FunctionDef):
            if isinstance(above, cst.If | cst.IfExp):
                test = rule.code(above.test)
                # if mask is None: return torch.tensor([True])  has no input to follow, nor has an empty list
                name = meeting.there.place.name
                if asks_for_device(test) or f"{name} is None" in test or f"len({name}) == 0" in test:
                    return True
            above = rule.parent(above)
    return False


def _stays_on_host(rule: Rule, meeting: Meeting) -> bool:
    """Whether what is supposed to be on a device is not: numpy reads it, or a script that never speaks of devices
    builds the module and runs it."""
    function = rule.flow.function(meeting.node)
    if function is None or reads_array(rule, function, meeting.there.place.name):
        return True
    if function.cls is None or speaks_of_devices(rule):
        return False
    built = [call for call in rule.source.nodes_of(cst.Call) if rule.code(call.func) == function.cls.name]
    return any(_is_run(rule, call) for call in built)


def _is_run(rule: Rule, call: cst.Call, steps: int = 3) -> bool:
    """Whether a file runs a call by itself, unlike that of ``def small(): return Net(8)``, which others call."""
    function = rule.flow.function(call)
    if function is None or function.name == "main" or function.name.startswith("test"):
        return True
    return steps > 0 and any(_is_run(rule, each, steps - 1) for each in calls_of(rule, function) if each is not call)


def speaks_of_devices(rule: Rule) -> bool:
    """Whether a file has to do with devices, or with what moves things by itself."""
    return _OF_DEVICES.search(rule.source.text) is not None


def is_dead(rule: Rule, node: cst.CSTNode) -> bool:
    """Whether a node stands under a flag of its function or method that is off, and that no call in the file sets:
    ``def attend(q, causal=False): if causal: ...``."""
    function = rule.flow.function(node)
    if function is None or function.outer is not None or not calls_of(rule, function):
        return False
    return is_switched_off(rule, node, parameters=True)


def is_off(rule: Rule, node: cst.CSTNode) -> bool:
    """Likewise, where it may be that nobody in the file calls the function, or of a flag of its object."""
    function = rule.flow.function(node)
    if function is None or function.outer is not None:
        return False
    return is_switched_off(rule, node, parameters=True) or is_switched_off(rule, node)


def calls_of(rule: Rule, function: Function) -> list[cst.Call]:
    """The calls in the file of what bears a function's name, or a method's: ``self.attend(q)``."""
    found = []
    for call in rule.source.nodes_of(cst.Call):
        func = call.func
        is_method = type(func) is cst.Attribute
        name = func.attr if type(func) is cst.Attribute else func
        if type(name) is cst.Name and name.value == function.name and is_method == (function.cls is not None):
            found.append(call)
    return found


def calls_that_run(rule: Rule, function: Function) -> list[cst.Call]:
    """The calls in the file of what bears a function's name; those of its class, where it is the constructor."""
    calls = calls_of(rule, function)
    if function.cls is not None and function.name == "__init__":
        calls += [call for call in rule.source.nodes_of(cst.Call) if dotted(call.func) == function.cls.name]
    return calls


def _is_callback(rule: Rule, function: Function) -> bool:
    """Whether others call a function, with what only they know: ``@converts("*.weight")``, ``def merge(ctx, q, k)``."""
    return function.is_replaced and not function.device_aware and not calls_of(rule, function)


def _believed(rule: Rule, meeting: Meeting, *, of_helpers: bool = False) -> bool:
    """Whether what a function was handed is on a device, as far as anybody knows.

    ``def loss(x): return x * torch.arange(x.size(0))`` fails as soon as it is, and nothing says that it never is.
    """
    flow = rule.flow
    function = flow.function(meeting.node)
    origin = meeting.host.origin
    if function is None or not may_be_handed_there(rule, function, meeting.node, meeting.there.place.name):
        return False
    if _is_beside_device(rule, meeting):
        return False
    made_in = flow.function(origin) if isinstance(origin, cst.CSTNode) else None
    if made_in is None:
        return False  # W = torch.randn(4, 1)  at the top of a script that runs on the host
    apart = made_in is not function and not _takes_tensors(rule, made_in) and not _is_table(function, made_in)
    return not apart or (of_helpers and _is_called_in(rule, function, made_in))


def may_be_handed_there(rule: Rule, function: Function, node: cst.CSTNode, name: str) -> bool:
    """Whether a function may be handed something of that name on a device, as far as anybody knows, at a node of it."""
    if function.role in (CONSTRUCTOR, HOST_SIDE) or function.name.startswith("test"):
        return False
    is_called = function.name == "__call__" and function.cls is not None and not function.cls.is_module
    if is_called and function.cls is not None and not function.cls.name.lower().endswith("loss"):
        return False  # class RandomErase: def __call__(self, image): ...  a transform of data
    if name in function.handed_host:
        return False  # pad(torch.zeros(3)): a caller hands it what is on the host
    if name in function.handed_parts:
        return False  # pad(state.mask): nobody knows where that is
    if function.cls is None and _makes_tables(rule, function) and _FOLLOWS.search(rule.source.text) is None:
        return False
    if is_dead(rule, node) or _is_callback(rule, function):
        return False
    if _FOR_HOST.search(function.name):
        return False  # def fetch_cpu(rows, table): ...
    if "pin_memory" in rule.source.text and any("pin_memory" in each.attribute_words for each in function.outwards):
        return False  # torch.stack([pad(row) for row in rows]).pin_memory(): only what is on the host can be pinned
    if is_no_tensor(rule.flow, node, name):
        return False  # if isinstance(knots, dict): torch.ones(n) * knots["low"]
    return not reads_array(rule, function, name)


def _makes_tables(rule: Rule, function: Function) -> bool:
    """Whether the file makes tables on the host, and this function may be handed one:
    ``def causal(n): return torch.ones(n, n).tril()``, ``def blocks(pattern): return pattern * torch.ones(8, 8)``."""
    makers = 0
    for other in rule.flow.scope.functions.values():
        given = other.summary.returns if other.summary is not None and other.cls is None else None
        if given is None or other is function or other.is_told_device or _takes_tensors(rule, other):
            continue
        makers += given.is_tensor and given.place.is_host and given.zero is not True
    return makers > 1


def _is_table(function: Function, made_in: Function) -> bool:
    """``self.alphas = torch.linspace(...)`` in the constructor of what is no module: nothing moves it."""
    cls = function.cls
    if cls is None or cls.is_module or made_in.cls not in cls.lineage or made_in.role != CONSTRUCTOR:
        return False
    return not made_in.device_aware and cls.find_method("to") is None


def _is_called_in(rule: Rule, function: Function, other: Function) -> bool:
    return any(rule.flow.function(call) is function for call in calls_of(rule, other))


def _takes_tensors(rule: Rule, function: Function) -> bool:
    values = (rule.flow.value(param) for param in function.params)
    return any(value.is_tensor and value.place.kind == "param" for value in values)


def reads_array(rule: Rule, function: Function, name: str) -> bool:
    """``x.numpy()``: what is handed in is on the host."""
    return bool(function.attributes.get(name, set()) & {"numpy", "tolist"})
