from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import libcst as cst

from devlint import tree
from devlint.finding import Fix
from devlint.flow import torch_table as table
from devlint.flow.hypothesis import asks_for_device, names_device
from devlint.flow.names import called_name, dotted, last_word, names_bound
from devlint.flow.place import HOST
from devlint.flow.scope import CONSTRUCTOR, Function
from devlint.flow.value import UNKNOWN_KIND
from devlint.rule import Rule
from devlint.rules._arguments import argument
from devlint.rules._moves import short
from devlint.rules._places import bound_before
from devlint.rules._recurs import function_of
from devlint.rules._same_run import is_of_same_run
from devlint.rules._shown import leaves_on_host

#: Words that put what is made somewhere else afterwards.
_PUTS = frozenset("to cuda cpu to_empty type_as".split())
#: What the parts of a list have to be on one device for: `torch.cat(found).to(device)` comes too late.
_JOIN = frozenset({"torch.cat", "torch.concat", "torch.stack", "torch.hstack", "torch.vstack"})
#: What reads a checkpoint by its name, and takes `map_location`.
_LOADS = re.compile(r"load|restore|resume|read|import|from_", re.IGNORECASE)
#: What holds counts and settings of a run, and no weights: `load_state(folder, "train.pt")`.
_OF_RUN = re.compile(r"(?<![a-z])(train(er)?(_state|/|\.p)|rng|scheduler|config|meta|vocab|stats)", re.IGNORECASE)
#: `load-without-map-location` has these.
_OF_TORCH = frozenset(
    "torch.load torch.serialization.load torch.hub.load_state_dict_from_url torch.utils.model_zoo.load_url".split()
)
#: Whose functions are told the device for reasons of their own, or are of `tensor-without-device`.
_NOT_OF_PROJECT = frozenset(
    "torch torchvision torchaudio numpy functools dict dataclasses argparse jax tensorflow print super".split()
)
_READS_OR_PUTS = _PUTS | {"numpy", "tolist"}


class Told(NamedTuple):
    """A call that is told the device, and the code that tells it: ``device=config.device``, ``**kwargs``."""

    call: cst.Call
    device: str


#: A function or method that calls name: the function or class by which the name means it, and the name.
_Callee = tuple[object, str]


class DeviceLeftOut(Rule):
    """Calls that go together are told the device, and one of them is not.

    ## What it does
    Reports a layer of torch that a constructor makes without `device=`, where it makes others with one and none without
    a reason (at least two, and the same device); and a tensor that one branch makes without `device=` for the name or
    list that the other branch makes it for with one. Reports the call of a function or method that loads something
    without `map_location=`, where another call of it in the same file gives one (`Net.load_from_file(path)`). Reports a
    class or function of the project that is called twice in one function with the same arguments, once with
    `device=device` and once without; and one that has a device for a default, where a method that has a `device` itself
    calls it without, and another call tells it one.

    ## Why is this bad
    What is made without `device=` is on the host. Beside what is on the device the first operation raises `Expected all
    tensors to be on the same device`; and a layer made so, where the others are made on `meta`, takes the memory, and
    the time to fill it, that `meta` was to save. What is loaded without `map_location=` goes to the device it was saved
    from, and where there is no such device, loading raises.

    ## Example
    ```python
    from torch import nn


    class Block(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.wide = nn.Linear(config.dim, 4 * config.dim, device=config.device)
            self.gate = nn.Linear(config.dim, 4 * config.dim)
            self.out = nn.Linear(4 * config.dim, config.dim, device=config.device)
    ```

    ## Use instead
    ```python
    from torch import nn


    class Block(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.wide = nn.Linear(config.dim, 4 * config.dim, device=config.device)
            self.gate = nn.Linear(config.dim, 4 * config.dim, device=config.device)
            self.out = nn.Linear(4 * config.dim, config.dim, device=config.device)
    ```

    ## Fix safety
    The fix gives the call the device of the others. It is unsafe: what was made on the host may have been meant so, and
    a device draws other random numbers than the host does.

    ## Limits
    Silent where the constructor or the method moves anything itself, under `with torch.device(...)`, where the device
    of the others is the host, and for layers without parameters. Of tensors, only those that are made for the same name
    or list on both sides of one `if` are compared, where the test does not ask for a device, and nothing moves them
    below. Of the calls of a class or function of the project, silent where what one gives is moved, where the device it
    is left at is `None`, which may go by what it is handed, and in tests; all of them are tentative, as the other one
    may be for the host on purpose. Single numbers (`torch.tensor(0.0)`) mix with anything, and are silent. New: two
    findings in code that is kept well, one of them true; the cause of the other was mended.

    Of what loads, `torch.load` and its like are left to `load-without-map-location`. Silent in tests, where one of the
    calls is under a test that asks for a device or comes after an error of the other, where the function is known to
    have another default than `None`, for what the same run has written, and for what holds no weights by its name.

    ## References
    - [Linear](https://docs.pytorch.org/docs/stable/generated/torch.nn.Linear.html)
    - [Skipping module parameter initialization](https://docs.pytorch.org/tutorials/prototype/skip_param_init.html)
    - [Creation ops](https://docs.pytorch.org/docs/stable/torch.html#creation-ops)
    """

    group = "nursery"
    fixable = "sometimes"
    assumes_host_default = True

    def check(self) -> None:
        if "map_location" in self.source.text and not self.in_tests:
            self._loads()
        if "device" not in self.source.text:
            return
        for function in self.flow.scope.functions.values():
            if function.role == CONSTRUCTOR and function.cls is not None and function.cls.is_module:
                self._layers(function)
        if not self.in_tests:
            self._twins()
        for node in self.source.nodes_of(cst.If):
            self._branches(node)
        for choice in self.source.nodes_of(cst.IfExp):
            above = self.parent(choice)
            if isinstance(above, cst.Assign):
                name = dotted(above.targets[0].target)
                self._compare([(choice.body, name)], [(choice.orelse, name)], choice.test, above)

    # layers -------------------------------------------------------------------------------------

    def _layers(self, function: Function) -> None:
        """``self.wide = nn.Linear(8, 32, device=device)`` beside ``self.gate = nn.Linear(8, 32)``."""
        told: list[Told] = []
        left: list[cst.Call] = []
        for call in tree.walk(function.node.body):
            if not isinstance(call, cst.Call):
                continue
            if _puts(call) or self.flow.name_of(call) == "torch.device":
                return  # self.to(device)   puts all of them there;   with torch.device(device): ...
            fact = table.MODULES.get(self.flow.name_of(call))
            if fact is None or fact.tensors not in ("always", "default"):
                continue  # nn.Dropout(0.1) has nothing to put anywhere
            device = self._device(call)
            if device is not None:
                told.append(Told(call, device))
            elif not any(arg.star for arg in call.args):
                left.append(call)
        devices = {each.device for each in told}
        if len(told) < 2 or len(devices) != 1 or len(left) >= len(told):
            return
        for call in left:
            self._report(call, told[0], f"{len(told)} other layers are told one")

    def _device(self, call: cst.Call) -> str | None:
        """What tells a call the device; ``None`` where nothing does, or that it is to be the host."""
        given = argument(call, None, "device")
        if given is None:
            # factory_kwargs = {"device": device, "dtype": dtype}; nn.Linear(8, 8, **factory_kwargs)
            named = [arg.value for arg in call.args if arg.star == "**"]
            return f"**{self.code(named[0])}" if named and "factory" in dotted(named[0]) else None
        return None if leaves_on_host(self, given.value) else f"device={self.code(given.value)}"

    # loading ------------------------------------------------------------------------------------

    def _loads(self) -> None:
        """``Net.load_from_file(path, map_location=device)``, and ``Net.load_from_file(path)``."""
        told: dict[_Callee, list[Told]] = {}
        left: list[cst.Call] = []
        for call in self.source.nodes_of(cst.Call):
            if not call.args or not _LOADS.search(called_name(call)) or self._is_asked(call):
                continue
            given = next((arg for arg in call.args if arg.keyword and arg.keyword.value == "map_location"), None)
            if given is None:
                # trainer_state = load_state(folder, "train.pt")
                of_run = _OF_RUN.search(self.code(self.enclosing(call, cst.Assign) or call))
                if not of_run and not any(arg.star for arg in call.args):
                    left.append(call)
            elif self.code(given.value) != "None":
                for callee in self._callees(call):
                    told.setdefault(callee, []).append(Told(call, f"map_location={self.code(given.value)}"))
        for call in left if told else ():
            found = [each for callee in sorted(self._callees(call), key=str) for each in told.get(callee, ())]
            # load_net(path, device): one that is told it by its name has room for no other before it
            found = [each for each in found if _places(call) <= _places(each.call)]
            if found and not self._has_default(call) and not is_of_same_run(self, call):
                self._report_load(call, found)

    def _is_asked(self, call: cst.Call) -> bool:
        """Whether it is one of two ways, by what the machine has, or by what the other one raises."""
        above = self.parent(call)
        while above is not None and not isinstance(above, cst.FunctionDef):
            # if torch.cuda.is_available(): net = load_net(path)
            if isinstance(above, cst.If | cst.IfExp) and asks_for_device(self.code(above.test)):
                return True
            # except RuntimeError: net = load_net(path, map_location="cpu")
            if isinstance(above, cst.ExceptHandler):
                return True
            above = self.parent(above)
        return False

    def _callees(self, call: cst.Call) -> set[_Callee]:
        path, function = dotted(call.func), self.flow.function(call)
        head, dot, rest = path.partition(".")
        if not path or self.flow.scope.qualified(call.func) in _OF_TORCH:
            return set()
        if head in ("self", "cls"):
            return {(function.cls if function is not None else None, path)}
        if function is None or head not in function.assigned | function.param_names:
            return {(None, path)}
        # kind = Flat if is_flat else Deep; kind.load(path)   calls that of either class
        return {(function, path)} | {(None, f"{name}{dot}{rest}") for name in self._classes(head, function)}

    def _classes(self, name: str, function: Function) -> set[str]:
        """The classes that a function binds a name to."""
        values = [
            node.value
            for node in self.source.nodes_of(cst.Assign)
            if self.flow.function(node) is function and dotted(node.targets[0].target) == name
        ]
        sides = [s for v in values for s in ((v.body, v.orelse) if isinstance(v, cst.IfExp) else (v,))]
        return {dotted(side) for side in sides if last_word(dotted(side))[:1].isupper()}

    def _has_default(self, call: cst.Call) -> bool:
        """``def load_net(path, map_location="cpu")``, also where the function sees to it itself."""
        function = function_of(self.flow, call) or self._of_class(call) or self._of_project(call)
        param = function.param("map_location") if function is not None else None
        if function is None or param is None:
            return False
        return "map_location" in function.assigned or (param.default is not None and dotted(param.default) != "None")

    def _of_class(self, call: cst.Call) -> Function | None:
        """``Net.load(path)``, where the file has the class."""
        owner, _, method = dotted(call.func).rpartition(".")
        cls = self.flow.scope.class_names.get(owner)
        return cls.methods.get(method) if cls is not None else None

    def _of_project(self, call: cst.Call) -> Function | None:
        """The function or classmethod of another file that is called."""
        qualified = self.flow.scope.qualified(call.func)
        unit = self.flow.followed(qualified)
        if unit is not None:
            return unit.function
        owner, _, method = qualified.rpartition(".")
        unit = self.flow.followed(owner) if owner else None
        return unit.cls.methods.get(method) if unit is not None and unit.cls is not None else None

    def _report_load(self, call: cst.Call, told: list[Told]) -> None:
        fixed = next((each for each in told if self._is_known(each, call)), None)
        edit = self.add_argument(call, fixed.device) if fixed is not None else None
        example = fixed or told[0]
        self.report(
            call,
            f"`{dotted(call.func)}` is left without `map_location=`: what it loads goes to where it was saved from",
            notes=[self.note(example.call, f"this is told `{short(example.device)}`")],
            fix=self.fix(f"add `{short(example.device)}`", edit, safe=False) if edit is not None else None,
        )

    def _is_known(self, told: Told, call: cst.Call) -> bool:
        """Whether each name that tells the device of another call is bound at this one."""
        value = next(arg.value for arg in told.call.args if arg.keyword and arg.keyword.value == "map_location")
        names = {
            node.value
            for node in tree.walk(value)
            if isinstance(node, cst.Name)
            and not (isinstance(above := self.parent(node), cst.Attribute) and above.attr is node)
        }
        function = self.flow.function(call)
        has_self = function is not None and function.cls is not None and function.takes_self
        return all(has_self if name == "self" else bound_before(self.flow, name, call) for name in names)

    # twins --------------------------------------------------------------------------------------

    def _twins(self) -> None:
        """``FeedForward(width, device=device)``, and ``FeedForward(width)`` below it."""
        told: dict[str, list[Told]] = {}
        left: list[tuple[cst.Call, str]] = []
        for call in self.source.nodes_of(cst.Call):
            path = dotted(call.func)
            if not path or any(arg.star for arg in call.args) or self._is_of_package(call):
                continue
            given = argument(call, None, "device")
            if given is None:
                # Block(8, device)
                if not any(names_device(last_word(dotted(arg.value))) for arg in call.args):
                    left.append((call, path))
            elif dotted(given.value) and not leaves_on_host(self, given.value) and not self._is_asked(call):
                # not device="cuda", which is a choice; if torch.cuda.is_available(): return Net(8, device=device)
                told.setdefault(path, []).append(Told(call, f"device={self.code(given.value)}"))
        for call, path in left:
            function = self.flow.function(call)
            if path not in told or self.flow.value(call).is_tensor:
                continue  # rows = look_up(ids)   is for `ignored-device-argument`
            if function is None or self._is_asked(call) or self._is_moved(call, function):
                continue
            callee = self._callee(call)
            twin = next((each for each in told[path] if self._is_twin(each, call, function, callee)), None)
            if twin is None:
                continue
            self.report(
                call,
                f"`{path}` is left without `device=`, and works on its own default",
                notes=[self.note(twin.call, f"this is told `{short(twin.device)}`")],
                fix=self._fix(call, twin),
                tentative=True,  # the other may be for the host on purpose
            )

    def _is_of_package(self, call: cst.Call) -> bool:
        """``torch.zeros(3)``, ``nn.Linear(8, 8)``, ``partial(make, 8)``, ``dict(rows=3)``: others speak of these."""
        return self.flow.scope.qualified(call.func).partition(".")[0] in _NOT_OF_PROJECT

    def _callee(self, call: cst.Call) -> Function | None:
        """The function, method or constructor that is called, where the file or the project has it."""
        cls = self.flow.scope.class_names.get(dotted(call.func))
        if cls is not None:
            return cls.find_method("__init__")
        unit = self.flow.followed(self.flow.scope.qualified(call.func))
        if unit is not None and unit.cls is not None:
            return unit.cls.find_method("__init__")
        return function_of(self.flow, call) or self._of_class(call) or self._of_project(call)

    def _is_twin(self, told: Told, call: cst.Call, function: Function, callee: Function | None) -> bool:
        """Whether a call that is told the device shows that another is to be told one as well."""
        param = callee.param("device") if callee is not None else None
        if callee is not None and (
            # def build(width, device=None): device = device or pick()
            param is None or param.default is None or dotted(param.default) == "None" or "device" in callee.assigned
        ):
            return False
        if self.flow.function(told.call) is function:
            # Block(width=8, device=device), Block(width=8)   and a class, where the default is not seen
            alike = _keywords(call) == _keywords(told.call) - {"device"} and _places(call) == _places(told.call)
            return alike and (callee is not None or last_word(dotted(call.func))[:1].isupper())
        # def load(path, device="cuda"): Net.load(path, device=device)
        # def __init__(self, net=None, device="cuda"): self.net = net or Net.load()   and the device is kept
        return param is not None and function.param("device") is not None and function.cls is not None

    def _is_moved(self, call: cst.Call, function: Function) -> bool:
        """Whether what is called for is moved, or may be: ``Net(8).to(device)``, ``self.net.to(device)``."""
        names: set[str] = set()
        assign: cst.Assign | None = self.enclosing(call, cst.Assign)
        for target in assign.targets if assign is not None else ():
            names |= {dotted(target.target), *names_bound(target.target)}
        # self.net = Net(8)   in one method, and self.net.to(device) in another
        where = function.cls.node if function.cls is not None else function.node
        for each in tree.walk(where):
            if not isinstance(each, cst.Call) or not isinstance(each.func, cst.Attribute) or not _puts(each):
                continue
            # made[0].to(device)
            if dotted(each.func.value) == "self" or any(
                part is call or (isinstance(part, cst.BaseExpression) and dotted(part) in names)
                for part in tree.walk(each.func.value)
            ):
                return True
        return False

    # branches -----------------------------------------------------------------------------------

    def _branches(self, node: cst.If) -> None:
        """``if wide: steps = torch.arange(n, device=x.device)``, and ``else: steps = torch.zeros(n)``."""
        if isinstance(node.orelse, cst.Else):
            self._compare(list(_made(node.body)), list(_made(node.orelse.body)), node.test, node)

    def _compare(
        self,
        one: list[tuple[cst.BaseExpression, str]],
        two: list[tuple[cst.BaseExpression, str]],
        test: cst.BaseExpression,
        node: cst.CSTNode,
    ) -> None:
        for here, there in ((one, two), (two, one)):
            told = {name: each for value, name in here if name and (each := self._told(value)) is not None}
            for value, name in there:
                call = self._left(value) if name in told else None
                if call is not None and not asks_for_device(self.code(test)) and not self._is_put(node, name):
                    self._report(call, told[name], "the other branch tells its own")

    def _told(self, value: cst.BaseExpression) -> Told | None:
        if not isinstance(value, cst.Call) or self.flow.factory(value) is None:
            return None
        device = self._device(value)
        return Told(value, device) if device is not None else None

    def _left(self, value: cst.BaseExpression) -> cst.Call | None:
        """A factory that is told nothing, with what is certain to have dimensions."""
        if not isinstance(value, cst.Call) or self.flow.factory(value) is None or any(arg.star for arg in value.args):
            return None
        if self.flow.name_of(value) in ("torch.linspace", "torch.logspace") and any(
            self.flow.value(arg.value).kind == UNKNOWN_KIND for arg in value.args
        ):
            return None  # torch.linspace(0, x.max(), 8)   goes where `x` is
        made = self.flow.value(value)
        is_on_host = made.place == HOST and made.zero is False
        return value if is_on_host and argument(value, None, "device") is None else None

    def _is_put(self, node: cst.CSTNode, name: str) -> bool:
        """Whether something below puts what was made somewhere, or reads it on the host: ``ids = ids.to(device)``."""
        function = self.flow.function(node)
        holder = name.removesuffix(".append")
        return any(
            isinstance(call, cst.Call)
            and isinstance(call.func, cst.Attribute)
            and call.func.attr.value in _READS_OR_PUTS
            and self.source.comes_before(node, call)
            and holder in self.code(self.enclosing(call, cst.BaseComp) or call)  # [x.to(device) for x in found]
            and self.flow.name_of(call.func.value) not in _JOIN
            for call in tree.walk(function.node.body if function is not None else self.source.module)
        )

    def _report(self, call: cst.Call, told: Told, why: str) -> None:
        self.report(
            call,
            f"`{self.flow.name_of(call)}` is left without `device=`, so that it is on the host, and {why}",
            notes=[self.note(told.call, f"this is told `{short(told.device)}`")],
            fix=self._fix(call, told),
        )

    def _fix(self, call: cst.Call, told: Told) -> Fix | None:
        head = told.device.removeprefix("device=").removeprefix("**").partition(".")[0]
        if not head.isidentifier() or not (head == "self" or bound_before(self.flow, head, call)):
            return None
        edit = self.add_argument(call, told.device)
        return self.fix(f"make it there: `{told.device}`", edit, safe=False) if edit is not None else None


def _places(call: cst.Call) -> int:
    """How many arguments are told by their place."""
    return sum(arg.keyword is None for arg in call.args)


def _keywords(call: cst.Call) -> set[str]:
    return {arg.keyword.value for arg in call.args if arg.keyword is not None}


def _puts(call: cst.Call) -> bool:
    return isinstance(call.func, cst.Attribute) and call.func.attr.value in _PUTS


def _made(block: cst.BaseSuite) -> Iterator[tuple[cst.BaseExpression, str]]:
    """What a branch makes, and the name or list that it goes to; under a further test, too."""
    for line in block.body:
        for small in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(small, cst.Assign) and len(small.targets) == 1:
                yield small.value, dotted(small.targets[0].target)
            elif isinstance(small, cst.Expr) and isinstance(small.value, cst.Call) and len(small.value.args) == 1:
                yield small.value.args[0].value, dotted(small.value.func)  # found.append(torch.zeros(1))
        if isinstance(line, cst.If) and line.orelse is None:
            yield from _made(line.body)
