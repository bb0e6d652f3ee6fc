from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import cached_property

import libcst as cst

from devlint import tree
from devlint.finding import Fix
from devlint.flow import torch_table as table
from devlint.flow.factories import makes_one
from devlint.flow.facts import Meeting
from devlint.flow.hypothesis import names_device
from devlint.flow.modules import has_tensors
from devlint.flow.names import dotted, last_word
from devlint.flow.place import Place
from devlint.flow.scope import CONSTRUCTOR, Class, Function
from devlint.flow.value import MODULE, Value
from devlint.rule import Rule
from devlint.rules._close_by import CloseBy, close_by
from devlint.rules._companions import Companion, companions
from devlint.rules._default_device import may_be_redirected
from devlint.rules._integer_products import has_products, makes_integers
from devlint.rules._left_on_host import leaves_more_on_host, left_beside, left_in_called
from devlint.rules._likeness import likened
from devlint.rules._meetings import doubted, given_back, is_dead, meetings
from devlint.rules._more_of_host import MadeOnHost, more_of_host
from devlint.rules._more_to_mend import has_more_to_mend
from devlint.rules._moves import short
from devlint.rules._optimizer_state import of_optimizers
from devlint.rules._places import device_expression, origin_note, where
from devlint.rules._plain import is_plain
from devlint.rules._shown import is_shown
from devlint.rules._switches import tests_apart
from devlint.rules._unread_local import beside_unread_device
from devlint.rules._wanted_on_host import may_be_wanted_on_host, meets_lengths

#: What a factory is told that a device would not go with: ``torch.rand(3, generator=self.generator)``.
_OF_HOST = frozenset({"generator", "pin_memory", "out"})
#: In a file that says this, something may run on the host as well: `device="cuda"` is no advice there.
_OF_HOST_TOO = re.compile(r"\bis_available\(|\bis_cuda\b|['\"]cpu['\"]")


class TensorWithoutDevice(Rule):
    """A tensor made on the host, for want of `device=`, meets tensors that are on a device.

    ## What it does
    Reports a factory call (`torch.zeros`, `torch.arange`, `torch.tensor`, ...) without `device=` whose
    result comes together with a tensor on an accelerator: as operands, in `torch.cat` or `torch.where`,
    as the argument of a layer that lives there, as a tensor indexed by one that does, or as what is put into one at
    indices. Reports, too, one that a function returns where other paths return what follows its input, that stays in a
    list of such or is filled from such, and one that is made anew because it was not on the right device. What else the
    function makes on the host, and does not move, is named in notes: it may meet a device as well.

    ## Why is this bad
    Factories make their tensor on the default device, which is the host. As soon as the model is moved,
    the operation raises `Expected all tensors to be on the same device`; where a tensor is indexed, `indices should be
    either on cpu or on the same device as the indexed tensor`.

    ## Example
    ```python
    import torch
    from torch import nn


    class Block(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.proj = nn.Linear(dim, dim)

        def forward(self, x):
            positions = torch.arange(x.size(1))
            return self.proj(x) + positions[:, None]
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn


    class Block(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.proj = nn.Linear(dim, dim)

        def forward(self, x):
            positions = torch.arange(x.size(1), device=x.device)
            return self.proj(x) + positions[:, None]
    ```

    ## Fix safety
    The fix adds `device=` with the device of the tensor that is met. It is safe: the values stay the same. For random
    factories (`torch.randn`, `torch.rand`, ...) it is unsafe: numbers drawn on a device are not the numbers that the
    same seed draws on the host. Where no expression that names the device is sure to be bound at the factory, no fix is
    offered, nor `device="cuda"` in a file that asks whether there is a GPU, or says `"cpu"`, nor where numpy or a plot
    reads the tensor as well, what is not known is handed it, or it is told a generator; nor where something else that
    the function makes on the host, and puts in the place of what it was handed, would stay behind. Such a function is
    reported once, and so is a statement, whose factories one fix mends. A fix takes along what meets the tensor on the
    host in the same expression, and takes `device=` out of the operation that it meets the other in, if that was given
    one (`x.index_select(0, i, device=d)`).

    ## Limits
    Silent where one of the two places is not known, and where torch or the project makes it right:

    - tensors without dimensions may mix with device tensors in elementwise operations;
    - a default device may be set (`torch.set_default_device`, `with torch.device(...)`), be it by a caller or a script
      that imports the file;
    - factories go where the tensors are that they are given (`torch.sparse_coo_tensor(indices, values)`,
      `torch.linspace(0, high, 5)`), and those with `**options` may be told a device;
    - what was made meets others on the host as well, or is below a flag that is off in every call of the file;
    - a parameter counts as on a device where its file has to do with devices, or its annotation or the docstring says
      that it is a tensor and the file knows no numpy; not in files about tests or data, unless the function makes other
      things where its input is, and not where a call in the file hands over what is on the host.

    Told by default is what is plain; where one of these does not hold, the finding is tentative:

    - The other side is the module's own, on a device that the code names, the input of `forward` or of a training step
      (in functions and methods that these hand it to, too) or of a public method of a module that its file never calls,
      or handed to a plain function that its file calls with what is on a device and with nothing else. What comes after
      the input of a module with layers, or is an entry of a batch (`target["boxes"]`), may be as the loader gave it.
    - The way there is straight: no branch, turn of a loop or constructor in between, at most one test above both, and
      nothing else that takes the tensor's place.
    - They meet in what takes them as they are: no module of unknown make, nor the mask of `nn.TransformerEncoder`. Data
      (`torch.tensor(found)`), which may be meant for the host, has to meet a module, what that has, or what is on a
      device of a name; written out (`torch.tensor([0.2, 0.8])`), also what is on `"cuda"`.
    - Nobody thinks of the host there: no `except` catches the error; nothing on the way is read as an array or moved
      afterwards (`torch.cat([torch.zeros(1), rows]).to(x.device)`); the module does not bring itself or its parts
      elsewhere (`self.to("cpu")`, a `to` of its own), and nobody asks it to be on the host (`Rope("cpu", config)`).
    - The module is on its device by then: not in what builds or resets it, loads its weights, or exports it, nor in a
      method that the file hands something on the host.
    - A device is meant at all: not in scripts that speak of none, tests that move nothing, programs for other
      processors (`import poptorch`), below a flag that is off by default, or for `device=None` that no call gives.
    - One `device=` mends it. Not where the result is read as an array, where something else that is on the host meets
      what is on a device next and is not reported, where the method fails on any device, or where integers are
      multiplied as matrices, for which CUDA has no kernels. Nor where there is more to mend as a rule: the function
      reads or makes arrays, or two of these go together: it is over 60 lines long, it or its class moves something by
      hand, it is a constructor that makes tensors of arrays, the file wraps tensors in `Variable`. Of 183 findings in
      code that nobody had tuned for, readers held 29 of 52 of this kind for true, and 120 of the 131 others.

    Tentative besides: what is returned or kept on the host where other paths follow the input, or is made with the
    sizes, type or rows of something and returned, filled or handed on; what meets something wherever that is, as what a
    model gives; what stands close by others that are made on a device (beside them in a call or literal, in another
    branch or method, between two lines of them, or where the function names a device that nothing reads); the state
    that an optimizer keeps for a parameter; what replaces a buffer; and what is indexed by something that was brought
    to a device, which ran before torch 1.13.

    In the thirteen samples since the eighty-first, of code that nobody had tuned for, strict readers held 250 of 301
    findings for true, 33 for arguable (what is said holds, and the advice alone does not help) and 18 for wrong. Of 15
    of a kind that is told newly since, what a step hands on and what public methods are handed, they held 13 for true
    and two for arguable. `benchmarks/precision` has each, with a reason. Most causes are mended; what is left is code
    that fails on any device for something else, and objects that are meant for the host.

    ## References
    - [Tensor attributes: torch.device](https://pytorch.org/docs/stable/tensor_attributes.html#torch.device)
    - [Creation ops](https://pytorch.org/docs/stable/torch.html#creation-ops)
    """

    group = "correctness"
    fixable = "sometimes"
    assumes_host_default = True
    needs_device = True
    raises = True

    def check(self) -> None:
        found: dict[cst.Call, Meeting] = {}
        for meeting in meetings(self):
            origin = meeting.host.origin
            # self.table = torch.arange(n): unregistered-tensor speaks of it
            if isinstance(origin, cst.Call) and self._is_meant(origin) and meeting.host.attr is None:
                found.setdefault(origin, meeting)
        returned: dict[cst.Call, Meeting] = {}
        for meeting in given_back(self):
            origin = meeting.host.origin
            if isinstance(origin, cst.Call) and self._is_left(origin) and origin not in found:
                returned.setdefault(origin, meeting)
        doubtful: dict[cst.Call, Meeting] = {}
        for meeting in (*doubted(self), *likened(self, self._is_left)):
            origin = meeting.host.origin
            if isinstance(origin, cst.Call) and self._is_left(origin) and origin not in found | returned:
                doubtful.setdefault(origin, meeting)
        reported: set[cst.CSTNode] = {*found, *returned, *doubtful}
        halves: set[Function | None] = set()
        told: dict[tuple[cst.CSTNode, Place, str], list[tuple[cst.Call, Meeting, Fix | None]]] = {}
        for factory, meeting in found.items():
            function = self.flow.function(factory)
            fix = self._fix(factory, meeting)
            if any(self._stays_behind(other, function, meeting) for other in self._on_one_path - reported):
                if function in halves:
                    continue  # said once: the function cannot be right before all of them are moved
                halves.add(function)
                fix = None
            # torch.cat([torch.zeros(n), self.weight, torch.zeros(n)]): one statement, mended at once
            statement = self.enclosing(factory, cst.BaseSmallStatement) or factory
            key = statement, meeting.there.place, fix.title if fix else ""
            told.setdefault(key, []).append((factory, meeting, fix))
        plain = [
            [each for each in alike if self._is_sure(*each[:2]) and not leaves_more_on_host(self, each[1], reported)]
            for alike in told.values()
        ]
        shown = {each[0] for alike, sure in zip(told.values(), plain, strict=True) if sure for each in alike}
        for alike, sure in zip(told.values(), plain, strict=True):
            self._report(alike, sure, shown, found)
        for factory, meeting in returned.items():
            self._report_returned(factory, meeting)
        for factory, meeting in doubtful.items():
            self._report_doubtful(factory, meeting)
        for cls in self.flow.scope.classes.values():
            if cls.is_module:
                self._rebound(cls, reported)
        if ".device" in self.source.text:
            for node in self.source.nodes_of(cst.If):
                self._rebuilt(node, reported)
        for factory in of_optimizers(self):
            if factory not in reported and self._is_meant(factory):
                reported.add(factory)
                self._report_state(factory)
        for each in close_by(self, self._is_left):
            if each.factory not in reported:
                reported.add(each.factory)
                self._report_close_by(each)
        for more in more_of_host(self, self._is_meant, self._is_left):
            if more.factory not in reported:
                reported.add(more.factory)
                self._report_more(more)
        if "device = " in self.source.text:
            for factory, assign in beside_unread_device(self, self._is_left):
                if factory not in reported:
                    reported.add(factory)
                    self._report_beside_unread(factory, assign)
        lines = {self.enclosing(each, cst.BaseSmallStatement) for each in reported} - {None}
        for companion in companions(self, self._is_left):
            # torch.ones(n) * torch.arange(n) + x: said, and mended, with the other one
            if self.enclosing(companion.factory, cst.BaseSmallStatement) not in lines:
                self._report_companion(companion)

    def _report_beside_unread(self, factory: cst.Call, assign: cst.Assign) -> None:
        name, asked = self.code(assign.targets[0].target), self.code(assign.value)
        self.report(
            factory,
            f"`{self.flow.name_of(factory)}` makes this tensor on the host, though its function asks for `{asked}`",
            notes=[self.note(assign, f"nothing reads `{name}`")],
            tentative=True,
        )

    def _is_meant(self, call: cst.Call) -> bool:
        """Whether a call is a factory that is on the host for want of ``device=``, and has no reason to be."""
        makes = self.flow.factory(call) is not None or self.flow.name_of(call) in table.KEEPING
        return makes and not self._may_name_device(call) and not self._meets_on_host(call)

    def _is_left(self, call: cst.Call) -> bool:
        """Likewise, or a constructor of a type of the host, which takes no ``device=`` but its own:
        ``torch.Tensor(rows)``. Where one surely meets a device, `mixed-devices` speaks of it."""
        is_typed = self.flow.name_of(call) in _TYPES
        is_typed = is_typed and not self._may_name_device(call) and not self._meets_on_host(call)
        return is_typed or self._is_meant(call)

    @cached_property
    def _on_one_path(self) -> set[cst.Call]:
        """The factories whose results take the place of something else under a test: ``if wide: steps = wider``."""
        made = {value.or_host.value.origin for value in self.flow.values.values() if value.or_host is not None}
        return {call for call in made if isinstance(call, cst.Call) and self._is_meant(call)}

    def _stays_behind(self, factory: cst.Call, function: Function | None, meeting: Meeting) -> bool:
        """Whether something else that the function makes is on the host after the fix, and comes next."""
        if self.flow.function(factory) is not function or is_dead(self, factory):
            return False
        return all(
            part is not factory and self.flow.value(part).origin is not factory for part in tree.walk(meeting.node)
        )

    def _may_name_device(self, factory: cst.Call) -> bool:
        """Whether it is on the host, but perhaps not for want of ``device=``."""
        for arg in factory.args:
            if arg.keyword is not None and arg.keyword.value == "device":
                return True  # torch.zeros(1, device=self.home)
            if arg.star == "**":
                return True  # options = {"device": self.home}; torch.zeros(1, **options)
        return False

    def _meets_on_host(self, factory: cst.Call) -> bool:
        """Whether it meets, too, what somebody brought to the host, or made there elsewhere: ``track = torch.zeros(n);
        track += echo(rows).cpu()``. A fix would only break that, and who wrote it thinks of the host."""
        function = self.flow.function(factory)
        others = self.flow.facts.together_on_host.get(factory, ())
        return any(self.flow.factory(other) is None or self.flow.function(other) is not function for other in others)

    def _report(
        self,
        alike: list[tuple[cst.Call, Meeting, Fix | None]],
        plain: list[tuple[cst.Call, Meeting, Fix | None]],
        shown: set[cst.Call],
        found: Collection[cst.Call],
    ) -> None:
        """Report what factories in one statement make, at the first that is sure, if one is."""
        first = (plain or alike)[0]
        factory, meeting, fix = first
        edits = {edit for *_, other in alike if other is not None for edit in other.edits}
        name = self.flow.name_of(factory)
        beside = left_beside(self, (factory, meeting.node), shown) if plain else []
        beside += left_in_called(self, factory, found, {*shown, *beside}) if plain else []
        there = self.code(self._on_device(meeting))
        apart = meeting.node is not factory
        met = [self.note(meeting.node, f"they meet here, in {meeting.what}")] if apart else []
        self.report(
            factory,
            f"`{name}` makes this tensor on the host, and it meets `{short(there)}` on {where(meeting.there.place)}",
            notes=[
                *met,
                *origin_note(self, f"`{short(there)}`", meeting.there),
                *(self.note(each[0], "so is this one") for each in alike if each is not first),
                *(self.note(each, "look at this one, too: it is made on the host") for each in beside),
            ],
            fix=self.fix(fix.title, *edits, safe=fix.safe) if fix is not None else None,
            tentative=not plain,
        )

    def _is_sure(self, factory: cst.Call, meeting: Meeting) -> bool:
        from devlint.broken import always_fails, fails_before  # late: there are few to ask of

        told = is_shown(self, meeting) and is_plain(self, meeting) and not _has_no_room(factory, meeting)
        told = told and not self._is_indexed_by_moved(meeting)
        told = told and not self._is_of_integer_products(factory)
        told = told and not self._is_moved_at_times(factory, meeting.there)
        told = told and not self._is_weak_on_both_sides(factory, meeting.there)
        told = told and not fails_before(self.flow, meeting.node)  # between the factory and there, too
        told = told and not always_fails(self.flow, meeting.node) and not meets_lengths(self, factory)
        return told and not has_more_to_mend(self, factory) and not may_be_redirected(self)

    def _is_indexed_by_moved(self, meeting: Meeting) -> bool:
        """``table = torch.zeros(n, 8); table[found.to(device)]`` is on the host, as a rule, since that is where it is
        read, and ran before torch 1.13. Readers held one of five such findings for true, and 16 of 22 where the index
        is on the module's device, or an input's."""
        place, origin = meeting.there.place, meeting.there.origin
        if meeting.what != "indexing" or (isinstance(origin, cst.Call) and self.flow.factory(origin) is not None):
            return False  # t = torch.randint(0, steps, (n,), device=self.device); self.alphas[t]
        return place.kind == "fixed" or not place.name or names_device(last_word(place.name))

    def _is_moved_at_times(self, factory: cst.Call, there: Value) -> bool:
        """``if cuda.is_available(): rows = rows.cuda()``: `device="cuda"` would fail where there is none."""
        if there.place.kind != "fixed" or there.origin is None:
            return False
        return bool(tests_apart(self, there.origin, factory))

    def _is_weak_on_both_sides(self, factory: cst.Call, there: Value) -> bool:
        """``sizes = torch.tensor(found); boxes / sizes``: data of the host may be meant to stay there, or be a single
        number, and so may what was handed in; and what one line puts on ``"cuda"``, the next need not."""
        entry, place = self.flow.factory(factory), there.place
        if there.kind == MODULE or (entry is not None and entry.values != "python"):
            return False
        is_known = bool(factory.args) and isinstance(factory.args[0].value, cst.List | cst.Tuple | cst.ListComp)
        if place.kind == "fixed":
            return not is_known
        is_named = place.name in ("", "self") or names_device(last_word(place.name))
        return not is_named and not (is_known and isinstance(there.origin, cst.Param))

    def _is_of_integer_products(self, factory: cst.Call) -> bool:
        """``ones = torch.ones(1, n, dtype=torch.int32); torch.matmul(rows, ones)``, for which CUDA has no kernel:
        `device=` alone would only change what is raised."""
        function = self.flow.function(factory)
        return function is not None and makes_integers(self, factory) and has_products(function.node.body)

    def _on_device(self, meeting: Meeting) -> cst.BaseExpression:
        """What it meets; of a method of the module's own, what that has on the device: ``self.weight``."""
        node, function = meeting.there_node, self.flow.function(meeting.there_node)
        owner, _, last = dotted(node).rpartition(".")
        cls = function.cls if function is not None and owner == "self" else None
        method = cls.find_method(last) if cls is not None else None
        if cls is None or method is None:
            return node
        attrs = {name: value for each in cls.lineage for name, value in each.attrs.items()}
        for part in tree.walk(method.node.body):
            if isinstance(part, cst.Attribute) and dotted(part.value) == "self":
                held = attrs.get(part.attr.value)
                if held is not None and (held.ref in ("parameter", "buffer") or has_tensors(held)):
                    return part
        return node

    def _rebound(self, cls: Class, reported: set[cst.CSTNode]) -> None:
        """``def reset(self, n): self.state = torch.zeros(n)``, where that is a buffer: it moves and is replaced."""
        for name in sorted(cls.buffers):
            for statement, value, function in cls.stores.get(name, ()):
                factory = value.origin
                if (
                    function.role != CONSTRUCTOR
                    and isinstance(factory, cst.Call)
                    and factory not in reported
                    and value.is_tensor
                    and value.place.is_host
                    and value.zero is False
                    and self._is_meant(factory)
                    and self._is_used_as_it_is(cls, name)
                ):
                    reported.add(factory)
                    self.report(
                        factory,
                        f"`self.{name}` is a buffer, which moves with `{cls.name}`, and `{self.flow.name_of(factory)}` "
                        "makes what replaces it on the host",
                        notes=[self.note(statement, "it is replaced here")],
                        tentative=True,
                    )

    def _is_used_as_it_is(self, cls: Class, name: str) -> bool:
        """Whether a step reads an attribute of a class, and nothing in the class moves it or asks where it is."""
        used = False
        for node in self.source.nodes_of(cst.Attribute):
            function = self.flow.function(node)
            if dotted(node) != f"self.{name}" or function is None or function.cls is not cls:
                continue
            above = self.parent(node)
            if isinstance(above, cst.Attribute) and above.attr.value in _PUTS:
                return False  # self.state = self.state.to(x.device)
            used = used or (function in self.flow.step_functions and not isinstance(above, cst.AssignTarget))
        return used

    def _rebuilt(self, node: cst.If, reported: set[cst.CSTNode]) -> None:
        """``if self.mask.device != x.device: self.mask = torch.ones(n, n)``, on the host again each time."""
        for held, given in _device_comparisons(node.test):
            if not held.startswith("self.") or given.startswith("self."):
                continue
            for assign in tree.walk(node.body):
                if isinstance(assign, cst.Assign) and dotted(assign.targets[0].target) == held:
                    factory = self._made_on_host(assign.value, given)
                    if factory is not None and factory not in reported and not self._moved_after(node, held):
                        reported.add(factory)
                        self._report_rebuilt(factory, node, held, given)

    def _made_on_host(self, value: cst.BaseExpression, given: str) -> cst.Call | None:
        """The factory of a table that nothing in the expression puts where ``given`` is."""
        factory = None
        for part in tree.walk(value):
            if isinstance(part, cst.Name) and (part.value in _PUTS or part.value == given.partition(".")[0]):
                above = self.parent(part)
                if not (isinstance(above, cst.Attribute) and above.attr.value in ("size", "shape", "dtype")):
                    return None  # torch.ones(n, device=x.device), torch.ones(n).type_as(x)
            if isinstance(part, cst.Call) and self.flow.factory(part) is not None:
                place = self.flow.value(part).place
                factory = part if place.is_host else factory
        return factory

    def _moved_after(self, node: cst.If, held: str) -> bool:
        """``self.mask = self.mask.to(x.device)`` below."""
        function = self.flow.function(node)
        return any(
            self.flow.function(call) is function
            and isinstance(call.func, cst.Attribute)
            and call.func.attr.value in _PUTS
            and dotted(call.func.value) == held
            for call in self.source.nodes_of(cst.Call)
        )

    def _report_rebuilt(self, factory: cst.Call, test: cst.If, held: str, given: str) -> None:
        device = f"{given}.device"
        edit = self.add_argument(factory, f"device={device}")
        self.report(
            factory,
            f"`{held}` is made anew because it is not where `{given}` is, and `{self.flow.name_of(factory)}` makes it "
            "on the host",
            notes=[self.note(test.test, "this asks where it is")],
            fix=self.fix(f"make it there: `device={device}`", edit, safe=True) if edit is not None else None,
        )

    def _report_returned(self, factory: cst.Call, meeting: Meeting) -> None:
        there = short(self.code(meeting.there_node))
        done = {"a list": "is set", "a copy": "is filled from what is"}.get(meeting.what, "is returned")
        self.report(
            factory,
            f"what `{self.flow.name_of(factory)}` makes here stays on the host, and `{there}` {done} on "
            f"{where(meeting.there.place)}",
            notes=[self.note(meeting.there_node, f"`{there}` {done} here")],
            fix=self._fix(factory, meeting),
            tentative=True,
        )

    def _report_doubtful(self, factory: cst.Call, meeting: Meeting) -> None:
        there, told = short(self.code(meeting.there_node)), self.flow.value(meeting.there_node).is_tensor
        self.report(
            factory,
            f"`{self.flow.name_of(factory)}` makes this tensor on the host, and it meets `{there}`, wherever that is",
            notes=[self.note(meeting.node, f"they meet here, in {meeting.what}")],
            fix=self._fix(factory, meeting) if meeting.there.place.kind == "param" and told else None,
            tentative=True,
        )

    def _report_state(self, factory: cst.Call) -> None:
        name = self.flow.name_of(factory)
        self.report(
            factory,
            f"`{name}` makes this state on the host, and the parameter that it is for is wherever the model is",
            tentative=True,
        )

    def _report_close_by(self, found: CloseBy) -> None:
        entry, fix = self.flow.factory(found.factory), None
        edit = self.add_argument(found.factory, f"device={found.device}") if found.device is not None else None
        if edit is not None and entry is not None:
            fix = self.fix(f"make it there: `device={found.device}`", edit, safe=entry.values != "random")
        self.report(
            found.factory,
            f"`{self.flow.name_of(found.factory)}` makes this tensor on the host, and {found.how}",
            notes=[self.note(found.beside, "this is meant")],
            fix=fix,
            tentative=True,
        )

    def _report_more(self, found: MadeOnHost) -> None:
        self.report(
            found.factory,
            f"`{self.flow.name_of(found.factory)}` makes this tensor on the host, and {found.why}",
            notes=[self.note(found.node, found.note)],
            tentative=True,
        )

    def _report_companion(self, companion: Companion) -> None:
        name = self.flow.name_of(companion.factory)
        self.report(
            companion.factory,
            f"`{name}` makes this tensor on the host, after `{short(companion.giver)}`, wherever that is",
            tentative=True,
        )

    def _fix(self, factory: cst.Call, meeting: Meeting) -> Fix | None:
        device = device_expression(self.flow, factory, meeting.there_node, meeting.there)
        if device is None or (device.startswith('"') and _OF_HOST_TOO.search(self.source.text)):
            return None
        factories = [factory, *self._met_before(factory)]
        if any(self.flow.name_of(each) in _TYPES or _is_told_of_host(each) for each in factories):
            return None
        if any(may_be_wanted_on_host(self, each, meeting.node) for each in factories):
            return None
        edits = [self.add_argument(each, f"device={device}") for each in factories]
        if None in edits:
            return None
        # x.index_select(1, rows, device=x.device)   had the right thought in the wrong call
        if isinstance(meeting.node, cst.Call) and self._takes_no_device(meeting.node):
            edits.append(self.remove_argument(meeting.node, "device"))
        entries = [self.flow.factory(each) for each in factories]
        random = any(entry is not None and entry.values == "random" for entry in entries)
        title = f"make it there: `device={device}`" + (" (draws other random numbers)" if random else "")
        return self.fix(title, *(edit for edit in edits if edit is not None), safe=not random)

    def _met_before(self, factory: cst.Call) -> Iterator[cst.Call]:
        """The other factories of an expression that meet what this one makes while both are on the host:
        ``torch.ones(n) * torch.arange(n)``."""
        whole: cst.BaseExpression = factory
        above = self.parent(whole)
        while isinstance(above, cst.BaseExpression | cst.Arg):
            if isinstance(above, cst.BaseExpression):
                value = self.flow.value(above)
                if value.is_tensor and value.place.is_host:
                    whole = above
            above = self.parent(above)
        for call in tree.walk(whole):
            if not isinstance(call, cst.Call) or call is factory or not self._is_meant(call):
                continue
            value = self.flow.value(call)
            if value.is_tensor and value.place.is_host and value.zero is False and self._is_part_of(call, whole):
                yield call

    def _is_part_of(self, part: cst.CSTNode, whole: cst.BaseExpression) -> bool:
        """Whether what an expression gives on the host is computed from a part of it as a tensor."""
        # torch.ones(n) * torch.arange(n).max().item()   the number may be made anywhere
        while part is not whole:
            above = self.parent(part)
            if isinstance(above, cst.BaseExpression) and not isinstance(above, cst.Attribute):
                value = self.flow.value(above)
                if not (value.is_tensor and value.place.is_host):
                    return False
            if above is None:
                return False
            part = above
        return True

    def _takes_no_device(self, call: cst.Call) -> bool:
        """Whether a call is of an operation of torch that makes nothing: ``x.gather(...)``, ``torch.cat(...)``."""
        if isinstance(call.func, cst.Attribute) and self.flow.value(call.func.value).is_tensor:
            return not call.func.attr.value.startswith("new_")
        name = self.flow.name_of(call)
        return name.startswith("torch.") and self.flow.factory(call) is None and not name.endswith("_like")


def _has_no_room(factory: cst.Call, meeting: Meeting) -> bool:
    """``loss += torch.zeros(1)``: where the loss has no dimensions, that raises on the host as well."""
    into = meeting.node.target if isinstance(meeting.node, cst.AugAssign) else None
    if into is not meeting.there_node or meeting.there.zero is False:
        return False
    return makes_one(factory)


def _device_comparisons(test: cst.BaseExpression) -> Iterator[tuple[str, str]]:
    """The paths on both sides of each ``a.device == b.device`` or ``a.device != b.device`` in a test."""
    for node in tree.walk(test):
        if isinstance(node, cst.Comparison) and len(node.comparisons) == 1:
            sides = node.left, node.comparisons[0].comparator
            if all(isinstance(side, cst.Attribute) and side.attr.value == "device" for side in sides):
                paths = [dotted(side.value) for side in sides if isinstance(side, cst.Attribute)]
                if all(paths):
                    yield (paths[0], paths[1]) if paths[0].startswith("self.") else (paths[1], paths[0])


#: Constructors that take no other device than the one of their type.
_TYPES = table.HOST_TYPED | {"torch.Tensor"}
#: Words that put a tensor somewhere.
_PUTS = frozenset("to cuda cpu device type_as new new_zeros new_ones new_full new_tensor zeros_like ones_like".split())


def _is_told_of_host(factory: cst.Call) -> bool:
    return any(arg.keyword is not None and arg.keyword.value in _OF_HOST for arg in factory.args)
