from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import libcst as cst

from devlint import tree
from devlint.finding import Fix
from devlint.flow import torch_table as table
from devlint.flow.hypothesis import asks_for_device
from devlint.flow.names import dotted
from devlint.flow.place import HOST
from devlint.flow.scope import CONSTRUCTOR, Function
from devlint.flow.value import UNKNOWN_KIND
from devlint.rule import Rule
from devlint.rules._arguments import argument
from devlint.rules._moves import short
from devlint.rules._places import bound_before
from devlint.rules._shown import leaves_on_host

#: Words that put what is made somewhere else afterwards.
_PUTS = frozenset("to cuda cpu to_empty type_as".split())
#: What the parts of a list have to be on one device for: `torch.cat(found).to(device)` comes too late.
_JOIN = frozenset({"torch.cat", "torch.concat", "torch.stack", "torch.hstack", "torch.vstack"})
_READS_OR_PUTS = _PUTS | {"numpy", "tolist"}


class Told(NamedTuple):
    """A call that is told the device, and the code that tells it: ``device=config.device``, ``**kwargs``."""

    call: cst.Call
    device: str


class DeviceLeftOut(Rule):
    """Calls that go together are told the device, and one of them is not.

    ## What it does
    Reports a layer of torch that a constructor makes without `device=`, where it makes others with one and none without
    a reason (at least two, and the same device); and a tensor that one branch makes without `device=` for the name or
    list that the other branch makes it for with one.

    ## Why is this bad
    What is made without `device=` is on the host. Beside what is on the device the first operation raises `Expected all
    tensors to be on the same device`; and a layer made so, where the others are made on `meta`, takes the memory, and
    the time to fill it, that `meta` was to save.

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
    below. Single numbers (`torch.tensor(0.0)`) mix with anything, and are silent. New: two findings in code that is
    kept well, one of them true; the cause of the other was mended.

    ## References
    - [Linear](https://docs.pytorch.org/docs/stable/generated/torch.nn.Linear.html)
    - [Skipping module parameter initialization](https://docs.pytorch.org/tutorials/prototype/skip_param_init.html)
    - [Creation ops](https://docs.pytorch.org/docs/stable/torch.html#creation-ops)
    """

    group = "nursery"
    fixable = "sometimes"
    assumes_host_default = True

    def check(self) -> None:
        if "device" not in self.source.text:
            return
        for function in self.flow.scope.functions.values():
            if function.role == CONSTRUCTOR and function.cls is not None and function.cls.is_module:
                self._layers(function)
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
