from __future__ import annotations

import os
import re

import libcst as cst

from devlint.finding import Fix
from devlint.flow import torch_table as table
from devlint.flow.arguments import is_true
from devlint.flow.names import called_name, dotted
from devlint.flow.place import DIFFERENT, HOST, Place, from_string, relation
from devlint.flow.scope import Function
from devlint.flow.value import DEVICE, GENERATOR, NONE, Value
from devlint.rule import Rule
from devlint.rules._arguments import argument
from devlint.rules._errors import is_expected
from devlint.rules._moves import short
from devlint.rules._places import device_expression, where


class GeneratorOnOtherDevice(Rule):
    """Random numbers are drawn on one device with a generator that is on another.

    ## What it does
    Reports `generator=g` where `g` is on the host and the numbers are drawn on a device, or the other way round:
    `torch.randn` and its kin, `x.normal_()` and other methods that draw, `torch.nn.init`, and `random_split`,
    `DataLoader` and samplers, which draw on the default device. Also

    - `torch.randn(shape, generator=generator).to(device)` where the generator is handed in: a caller that makes it on
      the device finds it refused;
    - `DataLoader(data, shuffle=True)` under `torch.set_default_device("cuda")`: it makes a generator on the host and
      draws on the default device.

    ## Why is this bad
    A generator belongs to one type of device, and no other draws with it: `Expected a 'cuda' device type for generator
    but found 'cpu'`. `torch.Generator()` and `torch.manual_seed()` give one on the host, even where another default
    device is set.

    ## Example
    ```python
    import torch


    def noise(x: torch.Tensor, device, seed):
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(x.shape, generator=generator, device=device)
    ```

    ## Use instead
    ```python
    import torch


    def noise(x: torch.Tensor, device, seed):
        generator = torch.Generator(device=device).manual_seed(seed)
        return torch.randn(x.shape, generator=generator, device=device)
    ```

    ## Fix safety
    The fix makes the generator on the device, or draws where a generator that is handed in is and moves the result.
    It is unsafe: each type of device gives other numbers for the same seed, and what else the generator is used for
    has to be on that device, too.

    ## Limits
    Silent where the place of either is not known, and between two devices of one type, which torch allows. What
    loaders, samplers and `random_split` are given is reported only where the default device is sure to be the host:
    nothing in the file sets another, and tensors around are made with `device=`. A generator that is handed in is
    reported only where the function neither looks at its device nor says where it draws, and not where the file itself
    has a use for the function and never gives it a generator, or hands on none but those of the host. Held back as
    tentative: a generator that is handed in, one on a device for what is drawn on the default device, which other files
    may have set, and what is in code for Gaudi, whose devices draw with generators of the host.

    In the nursery: of 13 findings in repositories that nobody had tuned for, 3 were worth a change, and 8 were wrong;
    what these showed is mended, and it has hardly spoken since.

    ## References
    - [torch.Generator](https://pytorch.org/docs/stable/generated/torch.Generator.html)
    - [Reproducibility](https://pytorch.org/docs/stable/notes/randomness.html)
    """

    group = "nursery"
    fixable = "sometimes"
    assumes_host_default = True
    raises = True

    def visit_Call(self, node: cst.Call) -> None:
        given = next((arg for arg in node.args if arg.keyword is not None and arg.keyword.value == "generator"), None)
        name = self.flow.name_of(node)
        if given is None:
            if name in _LOADERS:
                self._loader(node)
            return
        drawn = self._drawn_on(node, name)
        if drawn is None:
            return
        generator = self.flow.value(given.value)
        place, what = drawn
        if generator.kind == GENERATOR and _differ(generator.place, place):
            self._report(node, given, generator, place, what)
        elif place == HOST and name in table.FACTORIES:
            self._handed_in(node, given)

    def _drawn_on(self, node: cst.Call, name: str) -> tuple[Place, str] | None:
        """Where a call draws, and what it is called."""
        if name in table.FACTORIES or name in table.LIKE:
            return self.flow.value(node).place, name
        if name in _ON_DEFAULT:
            return (HOST, name) if self._default_is_host(node) else None
        if (name in _OF_TENSORS or name.startswith("torch.nn.init.")) and node.args:
            return self.flow.value(node.args[0].value).place, name
        if not name and isinstance(node.func, cst.Attribute) and node.func.attr.value in _METHODS:
            receiver = self.flow.value(node.func.value)
            return (receiver.place, node.func.attr.value) if receiver.holds_tensors else None
        return None

    def _default_is_host(self, node: cst.Call) -> bool:
        """Whether the default device surely is the host: around the node, tensors are told which device they are for.

        Nobody would where all are made on a default device that others set.
        """
        # torch.set_default_tensor_type("torch.cuda.FloatTensor")
        if "set_default_device" in self.source.text or "set_default_tensor_type" in self.source.text:
            return False
        # self.scale = torch.tensor(1.0); DataLoader(data, shuffle=True, generator=torch.Generator(device="cuda"))
        function = self.flow.function(node)
        cls = function.cls if function is not None else None
        made = [call for call in self.source.nodes_of(cst.Call) if self.flow.name_of(call) in table.FACTORIES]
        if cls is not None:
            made = [call for call in made if (own := self.flow.function(call)) is not None and own.cls is cls]
        return any(arg.keyword is not None and arg.keyword.value == "device" for call in made for arg in call.args)

    def _report(self, node: cst.Call, given: cst.Arg, generator: Value, place: Place, what: str) -> None:
        if is_expected(self, node):
            return
        code = short(self.code(given.value))
        origin = generator.origin
        notes = [self.note(origin, f"`{code}` is made here")] if origin is not None else []
        self.report(
            node,
            f"`{what}` draws on {where(place)}, and `{code}` is on {where(generator.place)}",
            notes=notes,
            fix=self._fix(node, generator, place) if place.is_there else None,
            # torch.rand(3, generator=torch.Generator(device="cuda"))  is right where others set the default device
            tentative=(place.is_host and argument(node, None, "device") is None) or self._is_for_gaudi(),
        )

    def _is_for_gaudi(self) -> bool:
        """``backends/gaudi/sample.py``: whether the code is for devices that draw with generators of the host."""
        # a backend may be a project of its own, in a folder of that name
        path = os.path.abspath(self.source.path).lower()
        return _GAUDI.search(path) is not None or _GAUDI.search(self.source.text) is not None

    def _fix(self, node: cst.Call, generator: Value, place: Place) -> Fix | None:
        """``torch.Generator()`` with the device of what it is used for."""
        made = generator.origin
        if not isinstance(made, cst.Call) or made.args or self.flow.name_of(made) != "torch.Generator":
            return None
        if self.flow.function(made) is not self.flow.function(node):
            return None
        code = device_expression(self.flow, made, node, Value(DEVICE, place))
        edit = self.add_argument(made, f"device={code}") if code is not None else None
        return self.fix("make the generator there", edit, safe=False) if edit is not None else None

    # a generator that is handed in --------------------------------------------------------------

    def _handed_in(self, node: cst.Call, given: cst.Arg) -> None:
        """``torch.randn(shape, generator=generator).to(device)``, in a function that takes the generator."""
        function = self.flow.function(node)
        name = dotted(given.value)
        if function is None or name not in function.param_names or name in function.assigned:
            return
        # if generator.device.type != "cpu": raise ...
        if function.attributes.get(name) or any(arg.keyword and arg.keyword.value == "device" for arg in node.args):
            return
        if function.cls is None and self._only_called_here(function) and not self._is_handed(function, name):
            return  # step = ddim_step if ddim else ddpm_step; step(sample, t)
        # sample(latent, generator=torch.Generator("cpu").manual_seed(0))
        if self._gets_host_generators(name):
            return
        calls = [other for other in self.source.nodes_of(cst.Call) if self.flow.function(other) is function]
        if any(self._draws_on_host(other, name) for other in calls):
            return  # torch.randn(shape, generator=generator, device="cpu")  says where the generator is
        func = self.parent(node)
        call = self.parent(func) if isinstance(func, cst.Attribute) else None
        target = self._moved_to(call) if isinstance(call, cst.Call) else None
        if target is None:
            return
        param = next(param for param in function.params if param.name.value == name)
        said = self.code(param.annotation) if param.annotation is not None else ""
        may_be_none = param.default is not None or "None" in said
        edit = self.add_argument(node, f"device={name}.device" + f" if {name} is not None else None" * may_be_none)
        self.report(
            node,
            f"`{name}` is handed in, and one that is on {target} cannot draw on the host",
            fix=self.fix("draw where the generator is", edit, safe=False) if edit is not None else None,
            tentative=True,  # callers may have none, or one on the host
        )

    def _moved_to(self, call: cst.Call) -> str | None:
        """Where a call brings what was drawn, in words; the host, and what is no device for sure, are ``None``."""
        move = self.flow.move(call)
        if move is not None and move.target.kind in ("device", "fixed", "param"):
            return where(move.target)
        if called_name(call) != "to" or not call.args:
            return None
        # there = x.device if torch.is_tensor(x) else "cpu"; noise.to(there)  which of both is not known
        given = self.flow.value(call.args[0].value)
        return where(Place("device", "")) if given.kind == DEVICE and not given.place.is_known else None

    def _only_called_here(self, function: Function) -> bool:
        """Whether the file has a use for the function itself."""
        return any(
            node.value == function.name and self.parent(node) is not function.node
            for node in self.source.nodes_of(cst.Name)
        )

    def _is_handed(self, function: Function, name: str) -> bool:
        """Whether the file hands an argument of that name to anything but torch, or calls the function with it."""
        position = [param.name.value for param in function.params].index(name)
        for call in self.source.nodes_of(cst.Call):
            if self.flow.name_of(call).startswith("torch."):
                continue
            named = any(arg.keyword is not None and arg.keyword.value == name for arg in call.args)
            if named or (self.code(call.func) == function.name and len(call.args) > position):
                return True
        return False

    def _gets_host_generators(self, name: str) -> bool:
        """Whether all that the file hands on by that name, but to torch, are generators of the host."""
        given = [
            self.flow.value(arg.value)
            for call in self.source.nodes_of(cst.Call)
            if not self.flow.name_of(call).startswith("torch.")
            for arg in call.args
            if arg.keyword is not None and arg.keyword.value == name
        ]
        return bool(given) and all(value.kind == GENERATOR and value.place.is_host for value in given)

    def _draws_on_host(self, call: cst.Call, name: str) -> bool:
        given = {arg.keyword.value: arg.value for arg in call.args if arg.keyword is not None}
        if "generator" not in given or "device" not in given or dotted(given["generator"]) != name:
            return False
        return self.flow.value(given["device"]).text == "cpu" and self.flow.name_of(call) in table.FACTORIES

    # under a default device ---------------------------------------------------------------------

    def _loader(self, node: cst.Call) -> None:
        """``DataLoader(data, shuffle=True)`` where the default device is an accelerator."""
        calls = [call for call in self.flow.calls("torch.set_default_device") if call.args]
        set_at = [call for call in calls if self.flow.value(call.args[0].value).kind != NONE]  # None: back to the host
        if len(set_at) != 1:
            return
        function = self.flow.function(set_at[0])
        if function is not None and function is not self.flow.function(node):
            return
        value = self.flow.value(set_at[0].args[0].value)
        place = value.place if value.kind == DEVICE else from_string(value.text or "")
        if not place.is_there or self.source.offsets(node)[0] < self.source.offsets(set_at[0])[0]:
            return
        given = {arg.keyword.value: arg.value for arg in node.args if arg.keyword is not None}
        if "shuffle" not in given or not is_true(given["shuffle"]) or "sampler" in given or "batch_sampler" in given:
            return
        torch = dotted(set_at[0].func).removesuffix(".set_default_device")
        code = self.code(set_at[0].args[0].value)
        edit = self.add_argument(node, f"generator={torch}.Generator(device={code})")
        self.report(
            node,
            f"the loader shuffles on the default device, {where(place)}, with a generator on the host",
            notes=[self.note(set_at[0], "the default device is set here")],
            fix=self.fix("give it a generator there", edit, safe=False) if edit is not None else None,
        )


def _differ(a: Place, b: Place) -> bool:
    """Whether two places are devices of different types: `cuda:0` draws with a generator of `cuda:1`."""
    types = [place.name.partition(":")[0] if place.kind == "fixed" else None for place in (a, b)]
    return relation(a, b) == DIFFERENT and (None in types or types[0] != types[1])


_LOADERS = frozenset({"torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"})
#: They draw on the default device: ``torch.randperm(n, generator=generator)``.
_ON_DEFAULT = _LOADERS | {
    "torch.utils.data.random_split",
    "torch.utils.data.RandomSampler",
    "torch.utils.data.SubsetRandomSampler",
    "torch.utils.data.WeightedRandomSampler",
}
_OF_TENSORS = frozenset({"torch.bernoulli", "torch.multinomial", "torch.normal", "torch.poisson"})
_METHODS = frozenset(
    "normal_ uniform_ random_ bernoulli_ bernoulli cauchy_ exponential_ geometric_ log_normal_ multinomial".split()
)

#: The devices of that name, and what comes with them.
_GAUDI = re.compile(r"\b(gaudi|habana|optimum[._]habana|habana_frameworks|hpu)\b")
