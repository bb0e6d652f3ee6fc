from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import libcst as cst

from devlint import tree
from devlint.finding import Fix
from devlint.flow import torch_table as table
from devlint.flow.facts import Meeting
from devlint.flow.names import called_name, dotted, last_word, only_target
from devlint.flow.scope import BARE_BASES, CONSTRUCTOR, DEVICE_SIDE, Class
from devlint.flow.value import DICT, LIST, MODULE, TUPLE, Value, inside
from devlint.rule import Rule
from devlint.rules._arguments import argument, given_to
from devlint.rules._buffer_fix import is_handed_on, is_set_otherwise, is_taken
from devlint.rules._default_device import is_under_default, may_be_redirected
from devlint.rules._exports import is_of_export
from devlint.rules._integer_products import is_product, makes_integers
from devlint.rules._kept_buffers import kept_buffers
from devlint.rules._left_on_host import SHOWN, leaves_more_on_host
from devlint.rules._left_plain import left_plain
from devlint.rules._meetings import calls_of, calls_that_run
from devlint.rules._modules import REGISTERED, after_super, has_parts
from devlint.rules._more_to_mend import has_more_to_mend
from devlint.rules._neighbours import Told, report_together
from devlint.rules._new_modules import is_built_in_steps
from devlint.rules._on_the_side import comes_after_input
from devlint.rules._overrides import overrides_attributes
from devlint.rules._placed_unseen import attribute_may_be_placed, bases_elsewhere
from devlint.rules._places import where
from devlint.rules._plain_uses import plain_uses
from devlint.rules._recurs import calls_of as calls_of_file
from devlint.rules._shown import OF_DATA, is_moved_next
from devlint.rules._switches import tests_above
from devlint.testcode import near


class UnregisteredTensor(Rule):
    """A tensor kept as a plain attribute of a module does not move with it.

    ## What it does
    Reports `self.x = <tensor>` in an `nn.Module` where a method later mixes `self.x` with tensors that are
    on the module's device; `self.x` may also be a list, tuple or dict of tensors. Attributes of a class that one
    method mixes so are one finding, which the first of them speaks for; what else the class keeps on the host, and its
    methods read, is named in notes. Reports tensors in a dictionary or list inside
    `nn.ParameterDict` or `nn.ParameterList`, which make parameters of tensors alone.

    Reports, too, by the text alone: attributes that several methods set, always to what is on the host, or anew in
    `forward` where they are too small; those that index what is on a device, and are copied there each time; those that
    `forward` gives back; tensors made with `device=self.device` in the constructor of a module that asks its parameters
    for that; what a method called `fit` made; buffers that another method sets to what is on the host; and buffers that
    the constructor keeps under a second name as well (`self.tables = [self.sine]`), where they stay as they are: a
    module that is moved gets other buffers.

    Reports, too, what takes a tensor away that was just registered: `self.x = self.register_buffer("x", x)`, which
    leaves `None` there, as `register_parameter`, `register_module` and `add_module` do.

    ## Why is this bad
    `module.to(device)` moves parameters and buffers only. A tensor in a plain attribute stays on the host, and
    the first operation that mixes it with a moved tensor raises. It is missing from `state_dict()`, too. The functions
    that register return nothing, and setting the attribute to that sets the buffer, parameter or module to `None`.

    ## Example
    ```python
    import torch
    from torch import nn


    class Stem(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = torch.tensor([0.5, 0.5, 0.5])
            self.conv = nn.Conv2d(3, 16, 3)

        def forward(self, x: torch.Tensor):
            return self.conv(x - self.mean[:, None, None])
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn


    class Stem(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.tensor([0.5, 0.5, 0.5]), persistent=False)
            self.conv = nn.Conv2d(3, 16, 3)

        def forward(self, x: torch.Tensor):
            return self.conv(x - self.mean[:, None, None])
    ```

    ## Fix safety
    The fix registers the tensor as a buffer with `persistent=False`, which leaves `state_dict()` as it was: safe. Where
    the attribute is `None` first, that line registers it instead, and what is assigned later stays registered: unsafe,
    since from then on only a tensor or `None` may be assigned. What is to be trained (`requires_grad=True`) is made a
    parameter, which is saved as well: unsafe. So is a buffer where the value may be trained, where the attribute also
    meets what was brought to the host: that has to be brought along then, where a subclass or another file sets it to
    what is no tensor or registers it, and where the constructor hands the tensor to what it keeps (`self.prior =
    Normal(self.mu, 1.0)`), which has the one on the host then. There is no fix where the class, a base or a subclass
    has something of that name first, be it `None`, a number or a method, for which torch raises `KeyError`; where the
    statement stands in a mixin that is no module; and for tensors in a list, tuple or dict: register each under a name
    of its own.

    ## Limits
    Silent where nothing is seen to mix the tensor with a moved one, and where it does get there:

    - it is moved at every use, registered later or on another path that is asked for where it is used, or moved by the
      module's own `_apply`, by a base (`running_mean` of a norm of torch's) or by Lightning (`example_input_array`);
    - it is read off a layer, whose parameters are registered with whoever keeps them;
    - it is in a module of tests that name no device, or in a class without a `forward` whose methods make all their
      tensors without a device.

    Tentative where the code allows the fault and does not show it:

    - Something else may move or register it: a helper, hook, subclass or other file (`setattr(module, name,
      value.to(device))`, `net.mean = net.mean.cuda()`, `net.register_buffer("mean", mean)`), a `__setattr__` of the
      class's own, a decorator, or `self.mean.data = ...`; or what comes of it is moved at once
      (`self.table[ids].to(x.device)`, which ran before torch 1.13).
    - It may be no plain tensor: a parameter on the other path (`nn.Parameter(scale) if learned else scale`), a
      default (`torch.zeros(3) if mean is None else mean`), made of something that was handed in (`torch.tensor(mean)`),
      or a tensor that the constructor of a module with parts is handed.
    - The module may stay on the host: it has no parameters, buffers or modules of its own and its file moves none,
      unless it is a loss by its name; it is in a file of data or transforms, read on the host
      (`self.policy(x).numpy()`) and moved nowhere, brings its own parts there, calls quantized functions, is part of an
      export, or a script sets a default device; the attribute meets what was brought to the host as well.
    - What it meets may be on the host: what a method of a class with layers is handed after its input (of nine such
      findings of two rules readers held two for true), what a method is handed that the file never calls, or hands
      something on the host, and masks beside `is_causal=True`.
    - A buffer would not cure it: what is made behind the constructor's own `self.to(device)`, in a method that users
      call later, while weights are loaded or set (`load_weights`, `set_prompt`), of a parameter with its graph, or anew
      in each step; integers that matrices are multiplied by; and where the method fails there for something else that
      is not reported, or on any device, or more is to be mended as a rule, as `tensor-without-device` has it.
    - The text alone tells it, as in the second paragraph above, or the class has no `forward`.

    In the thirteen samples since the eighty-first, of code that nobody had tuned for, strict readers held 82 of 99
    findings for true, ten for arguable and seven for wrong. `benchmarks/precision` has each, with a reason. What is
    left are modules that are meant for the host, and code that fails on any device for something else.

    ## References
    - [torch.nn.Module.register_buffer](https://pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.register_buffer)
    """

    group = "correctness"
    fixable = "sometimes"
    assumes_host_default = True
    raises = True

    def check(self) -> None:
        of_test = self.in_tests
        reported: set[tuple[Class, str]] = set()
        found: list[Told] = []
        perhaps, kept = self.flow.facts.perhaps, self.flow.facts.kept
        for meeting in (*self.flow.facts.meetings.values(), *perhaps.values(), *kept.values()):
            attr = meeting.host.attr
            if attr is None or attr in reported or not attr[0].is_module:
                continue
            if of_test and meeting.there.place.kind != "fixed":
                continue  # a test's modules are made, and stay, on the host
            cls, name = attr
            if _is_moved_by_hand(cls, name) or self._is_moved_by_lightning(cls, name):
                continue
            reported.add(attr)
            stores = self.flow.stores(cls, name)
            if any(self._may_be_registered(statement, value) for statement, value in stores):
                for statement in left_plain(self, [each for each, _ in stores], meeting.node):
                    told = self._told(statement, cls, name, meeting, "attribute", "it", sure=False, on_host=False)
                    found.append(replace(told, fix=None))  # where it is the parameter, it must be no buffer
                continue
            if self._is_on_default_device(cls, meeting.node):
                continue
            on_host = self._meets_moved_to_host(cls, name) or self._brings_parts_back(cls)
            sure = self._is_asked_as_module(cls) and not self._is_for_show(meeting.node) and not on_host
            sure = sure and (meeting.node, meeting.host_node) not in perhaps
            sure = sure and not is_of_export(self, meeting.node) and not self._is_for_others_to_call(meeting)
            sure = sure and not any(self._may_follow(value) for _, value in stores)
            sure = sure and not _may_be_index(meeting) and not self._is_read_on_host(cls)
            sure = sure and not any(is_under_default(self, self.flow.function(each)) for each, _ in stores)
            sure = sure and not any(self._may_be_set_late(each) for each, _ in stores)
            sure = sure and not (is_product(meeting.node) and any(makes_integers(self, each) for each, _ in stores))
            sure = sure and not self._is_handed_host(meeting) and not self._is_registered_below(cls, name)
            sure = sure and not self._may_be_of_data(cls)
            sure = sure and not is_moved_next(self, meeting.node)
            sure = sure and not attribute_may_be_placed(self, cls, name) and not overrides_attributes(self, cls)
            sure = sure and not may_be_redirected(self)
            sure = sure and not is_built_in_steps(self, cls) and self._cures(meeting)
            sure = sure and not self._is_beside_input(meeting)
            if (meeting.node, meeting.host_node) in kept:
                for statement, value in stores if _is_whole(cls) else ():
                    if value.is_tensor and isinstance(value.origin, cst.Param):
                        found.append(self._told_kept(statement, cls, name, meeting))
                continue
            for statement, value in stores:
                cured = sure and not has_more_to_mend(self, statement, meeting.node)
                if value.is_tensor and value.place.is_host:
                    cured = cured and not self._is_no_cure(statement)
                    found.append(
                        self._told(statement, cls, name, meeting, "attribute", "it", sure=cured, on_host=on_host)
                    )
                elif value.or_host is not None:  # self.mean = torch.zeros(3) if mean is None else mean
                    found.append(
                        self._told(statement, cls, name, meeting, "attribute", "it", sure=False, on_host=on_host)
                    )
                elif value.kind in _CONTAINERS and any(v.is_tensor and v.place.is_host for v in inside(value)):
                    container = _CONTAINERS[value.kind]
                    found.append(
                        self._told(
                            statement, cls, name, meeting, container, "what is in it", sure=cured, on_host=on_host
                        )
                    )
        # class Wide(Net): what `Net` keeps, and both mix with others, is told once
        once: dict[cst.CSTNode, Told] = {}
        for told in sorted(found, key=lambda told: told.tentative):
            once.setdefault(told.node, told)
        found = list(once.values())
        found += self._used_plainly(reported, {told.node for told in found})
        found += self._kept_buffers()
        report_together(self, self._with_others(found))
        for node in self.source.nodes_of(cst.Assign):
            self._taken_away(node)
        for call in self.flow.calls(*_OF_PARAMETERS):
            self._held_deeper(call)

    def _is_beside_input(self, meeting: Meeting) -> bool:
        """``def forward(self, x, steps): ... self.table * steps`` of a class with layers."""
        function = self.flow.function(meeting.node)
        if function is None or function.cls is None:
            return False
        return comes_after_input(function, function.cls, meeting.there.place)

    def _with_others(self, found: list[Told]) -> Iterator[Told]:
        """What is sure, with what its class keeps on the host besides that nothing sure is said of."""
        sure = {told.node for told in found if not told.tentative}
        for told in found:
            cls = told.key[0] if isinstance(told.key, tuple) else None
            others = self._kept_beside(cls, sure) if told.node in sure and isinstance(cls, Class) else []
            notes = [self.note(each, "look at this one, too: it is kept on the host") for each in others]
            yield replace(told, notes=[*told.notes, *notes])

    def _kept_beside(self, cls: Class, sure: set[cst.CSTNode]) -> list[cst.CSTNode]:
        """``self.bounds = [torch.zeros(3)]``, where a method that is no constructor reads that."""
        read = {
            name
            for method in cls.methods.values()
            if method.role != CONSTRUCTOR
            for name in method.attributes.get("self", ())
        }
        return [
            statement
            for name, stores in cls.stores.items()
            if name in read and not _is_moved_by_hand(cls, name)
            # self.moved = self.moved.to(x.device)   in `forward`
            if all(_is_kept_on_host(value) and not self._may_be_registered(each, value) for each, value, _ in stores)
            for statement, *_ in stores
            if statement not in sure
        ][:SHOWN]

    def _used_plainly(self, reported: set[tuple[Class, str]], told: set[cst.CSTNode]) -> Iterator[Told]:
        """What the text says of attributes that the flow lost sight of."""
        for meeting, how, kept in plain_uses(self):
            attr = meeting.host.attr
            if attr is None or attr in reported or (self.in_tests and meeting.there.place.kind != "fixed"):
                continue
            cls, name = attr
            stores = self.flow.stores(cls, name)
            if _is_moved_by_hand(cls, name) or self._is_moved_by_lightning(cls, name):
                continue
            registered = not kept.in_buffer and any(self._may_be_registered(*store) for store in stores)
            if registered or is_of_export(self, meeting.node):
                continue
            there = " ".join(self.code(meeting.there_node).split())[:40]
            note = {
                "meets": f"here it meets `{there}`, which is on {where(meeting.there.place)}",
                "indexes": f"here it indexes `{there}`, and is copied to {where(meeting.there.place)} in each call",
                "back": "`forward` gives it back here",
            }[how]
            for statement in kept.stores:
                if statement in told:
                    continue
                told.add(statement)
                function = self.flow.function(statement)
                late = kept.in_buffer or (function is not None and function.role == DEVICE_SIDE and not kept.fitted)
                stays = "where it was fitted" if kept.fitted else "on the host"
                message = f"`self.{name}` is a plain attribute: it stays {stays} when `{cls.name}` is moved"
                if how == "indexes":
                    message = f"`self.{name}` is a plain attribute: each call copies it to the device to index with it"
                elif late:
                    message = f"`self.{name}` is made on the host here, whatever device `{cls.name}` is on"
                fixable = len(stores) == 1 and how != "back" and not late
                yield Told(
                    statement,
                    message,
                    f"so does `self.{name}`",
                    notes=[self.note(meeting.node, note)],
                    fix=self._fix(statement, cls, name, on_host=True) if fixable else None,
                    key=(cls, function, statement if late else self.flow.function(meeting.node), "by the text"),
                    tentative=True,
                )

    def _kept_buffers(self) -> Iterator[Told]:
        """``self.tables[name] = self.sine``, of a buffer: moving a module gives it other buffers."""
        for cls, name, statement, kept, use in kept_buffers(self) if not self.in_tests else ():
            yield Told(
                statement,
                f"`self.{name}` keeps a buffer as it is now: when `{cls.name}` is moved, it gets another one, and this "
                "stays",
                "so is this",
                notes=[self.note(kept, "the buffer"), self.note(use, "what was kept is used here")],
                key=(cls, name, "kept"),
                tentative=True,
            )

    def _held_deeper(self, call: cst.Call) -> None:
        """``self.banks = nn.ParameterDict({"low": {"b": b}})``, which makes parameters of tensors, and keeps a
        dictionary as it is."""
        assign, function, given = self.parent(call), self.flow.function(call), argument(call, 0, "parameters", "values")
        cls = function.cls if function is not None else None
        if cls is None or not cls.is_module or given is None or not isinstance(assign, cst.Assign):
            return
        path = dotted(assign.targets[0].target)
        held = self.flow.value(given.value)
        deeper = [each for each in inside(held) if each.kind in _CONTAINERS] if held.kind in _CONTAINERS else []
        found = [v for each in deeper for v in inside(each) if v.is_tensor and v.ref not in REGISTERED]
        if not path.startswith("self.") or not any(v.place.is_host for v in found):
            return
        kind, code = last_word(self.flow.name_of(call)), self.code(cls.node)
        self.report(
            call,
            f"`{kind}` makes parameters of tensors: those in a {_CONTAINERS[deeper[0].kind]} inside `{path}` stay on "
            f"the host when `{cls.name}` is moved",
            notes=[self.note(found[0].origin, "one of them is made here")],
            # bank["b"].to(x.device)   at each use, for all that is known
            tentative=any(word in code for word in (".to(", ".cuda(", ".type_as(")),
        )

    def _taken_away(self, node: cst.Assign) -> None:
        """``self.table = self.register_buffer("table", table)``"""
        call, target, function = node.value, node.targets[0].target, self.flow.function(node)
        if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute) or len(node.targets) != 1:
            return
        owner, how, given = dotted(call.func.value), call.func.attr.value, argument(call, 0, "name")
        cls = function.cls if function is not None else None
        if cls is None or not cls.is_module or owner != "self" or how not in _REGISTER or cls.find_method(how):
            return
        kept = argument(call, 1, *_KEPT)
        if kept is not None and self.code(kept.value) == "None":
            return  # self.bias = self.register_parameter("bias", None): it is to be None
        name = self.flow.value(given.value).text if given is not None else None
        if name is None or dotted(target) != f"self.{name}":
            return  # self.hook = self.register_buffer("table", table): None, which may be what is meant
        start, before = self.source.offsets(target)[0], self.source.offsets(call)[0]
        self.report(
            node,
            f"`{how}` returns `None`, which takes the place of the `{name}` that it has just registered",
            fix=self.fix("leave it to the call", self.replace_between(start, before, ""), safe=False),
            # self.delta = self.register_buffer("delta", one) ... self.delta = measure(x)   nobody may miss the first
            tentative=any(isinstance(s, cst.Assign) and s is not node for s, _ in self.flow.stores(cls, name)),
        )

    def _may_be_registered(self, statement: cst.CSTNode, value: Value) -> bool:
        """Whether a store makes a parameter, a buffer or a module of the attribute, on any path."""
        if value.ref in REGISTERED or value.kind == MODULE:
            return True
        # self.scale = nn.Parameter(scale) if learned else scale
        todo = [statement.value] if isinstance(statement, cst.Assign | cst.AnnAssign) else []
        while todo:
            node = todo.pop()
            if isinstance(node, cst.IfExp):
                todo += [node.body, node.orelse]
            elif node is not None:
                known = self.flow.value(node)
                if known.ref in REGISTERED or known.kind == MODULE or self._is_parameter_somewhere(node):
                    return True
        return False

    def _is_parameter_somewhere(self, node: cst.BaseExpression) -> bool:
        """``if learned: scale = nn.Parameter(scale)``, and ``self.scale = scale`` behind it."""
        function = self.flow.function(node)
        return isinstance(node, cst.Name) and any(
            dotted(target.target) == node.value and self.flow.value(assign.value).ref in REGISTERED
            for assign in self.source.nodes_of(cst.Assign)
            if self.flow.function(assign) is function
            for target in assign.targets
        )

    def _is_on_default_device(self, cls: Class, use: cst.CSTNode) -> bool:
        """Whether a class that is not called, but asked by its methods, makes all that meets there without a device: it
        would have failed before, unless others set the default device, or it is on the host."""
        # self.low = torch.tensor(0.1)
        # def model(self): return self.decode(torch.ones(self.n))
        # def decode(self, z): return z * self.low
        used_in = self.flow.function(use)
        if used_in is None or cls.find_method("forward") is not None:
            return False
        made = {
            call: function
            for call in self.source.nodes_of(cst.Call)
            if self.flow.name_of(call) in table.FACTORIES
            and (function := self.flow.function(call)) is not None
            and function.cls is cls
        }
        if any(arg.keyword is not None and arg.keyword.value == "device" for call in made for arg in call.args):
            return False
        if any(move.value.origin in made for move in self.flow.facts.moves.values()):
            return False
        return any(function is used_in or used_in.name in function.self_calls for function in made.values())

    def _cures(self, meeting: Meeting) -> bool:
        """Whether nothing else, for all that is seen, makes the method fail in which it meets a device."""
        from devlint.broken import always_fails  # late: there are few to ask of

        # torch.zeros(3) + x   is reported by tensor-without-device
        return not always_fails(self.flow, meeting.node) and not leaves_more_on_host(self, meeting, self._factories)

    @cached_property
    def _factories(self) -> set[cst.CSTNode | None]:
        """Those whose results are seen to meet a device."""
        return {meeting.host.origin for meeting in self.flow.facts.meetings.values() if meeting.host.attr is None}

    def _is_asked_as_module(self, cls: Class) -> bool:
        """Whether the class, or one that it is a base of, is called as modules are: others may never be moved."""
        # class Guide(nn.Module): def model(self, x): ...; def guide(self, x): ...
        return any(method in each.methods for each in (*cls.lineage, *cls.descendants) for method in _CALLED)

    def _is_no_cure(self, statement: cst.CSTNode) -> bool:
        """Whether a buffer would be on the host just the same, or keep a graph there: ``self.to(device); self.steps =
        torch.arange(9)``, ``def reset(self): self.state = torch.zeros(9)``, ``self.back = torch.inverse(self.weight)``.
        """
        function = self.flow.function(statement)
        if function is None or not isinstance(statement, cst.Assign | cst.AnnAssign) or statement.value is None:
            return False
        moves = (
            each
            for each in tree.walk(function.node.body)
            if isinstance(each, cst.Call) and dotted(each.func) in _OWN_MOVES
        )
        made = self.flow.value(statement.value)
        of_parameter = made.tracked is not False and any(
            isinstance(each, cst.Attribute) and self.flow.value(each).ref == "parameter"
            for each in tree.walk(statement.value)
        )
        late = function.role != CONSTRUCTOR or any(self.source.comes_before(each, statement) for each in moves)
        return late or of_parameter

    def _may_be_set_late(self, statement: cst.CSTNode) -> bool:
        """``def load_weights(self, weights): ...; self.table = self.embed.weight * 2``, ``def set_prompt(self, text):
        self.prompt = torch.tensor(encode(text))``, be it called by the constructor, too: when weights are loaded, or
        the user sets another, the module may be where it is to be."""
        function = self.flow.function(statement)
        return function is not None and function.name != "__init__" and _SETS_LATE.search(function.name) is not None

    def _may_follow(self, value: Value) -> bool:
        """``def __init__(self, mean): self.mean = torch.tensor(mean)``, which stays where a tensor is that is handed
        in."""
        made = value.origin
        if not isinstance(made, cst.Call) or self.flow.name_of(made) not in ("torch.tensor", "torch.as_tensor"):
            return False
        data = made.args[0].value if made.args else None
        function = self.flow.function(made)
        param = function.param(data.value) if function is not None and isinstance(data, cst.Name) else None
        if function is None or param is None or param.annotation is not None or param.default is not None:
            return False
        # Normalize([0.5, 0.4, 0.3])
        calls = calls_that_run(self, function)
        return not calls or any(not isinstance(arg.value, _NUMBERS) for call in calls for arg in call.args)

    def _is_for_others_to_call(self, meeting: Meeting) -> bool:
        """``def paint(self, labels): return labels @ self.palette``, which the file never calls: who does may hand it
        what is on the host."""
        function = self.flow.function(meeting.node)
        if function is None or function.name in _CALLED or not isinstance(meeting.there.origin, cst.Param):
            return False
        return not calls_of(self, function)

    def _is_handed_host(self, meeting: Meeting) -> bool:
        """``for x, labels in loader: loss(net(x.cuda()), labels)``: what it meets is handed over on the host."""
        param, function = meeting.there.origin, self.flow.function(meeting.node)
        if function is None or not isinstance(param, cst.Param) or param not in function.params:
            return False
        for call in calls_of_file(self.flow, function):
            given = map(self.flow.value, given_to(call, function, param))
            # Net()(torch.rand(3))   where all is on the host says nothing
            if any(value.holds_tensors and value.place.is_host for value in given) and any(
                self.flow.value(arg.value).place.is_there for arg in call.args
            ):
                return True
        return False

    def _is_registered_below(self, cls: Class, name: str) -> bool:
        """``class Base`` keeps it, ``class Net(Base)`` registers it, and the file makes the second alone."""
        return any(name in each.buffers for each in cls.descendants) and not any(
            dotted(call.func) == cls.name for call in self.source.nodes_of(cst.Call)
        )

    def _may_be_of_data(self, cls: Class) -> bool:
        """Whether what reads data may call a module on the host: ``Normalize`` of `transforms.py`, or one without parts
        in a file that has no other and moves none, but for a loss."""
        if OF_DATA.search("/".join(near(self.source.path))):
            return True
        moves = self.flow.facts.moves.values()
        if _IS_LOSS.search(cls.name) or any(move.value.kind == MODULE and move.target.is_there for move in moves):
            return False
        return not any(each.is_module and self._may_have_parts(each) for each in self.flow.scope.classes.values())

    def _may_have_parts(self, cls: Class) -> bool:
        """Whether a module has parameters, buffers or modules, of its own or from its bases, for all that is known."""
        if has_parts(cls) or any(has_parts(base) for base in bases_elsewhere(self, cls)):
            return True
        return not self._ends(cls) <= BARE_BASES

    def _ends(self, cls: Class) -> set[str]:
        """The classes of other packages that a class descends from."""
        ends, project = cls.outside_bases, self.flow.project
        if project is not None:
            for base in [name for each in cls.lineage for name in each.project_bases]:
                ends = ends - {base} | project.ancestry(base).outside
        return ends

    def _is_moved_by_lightning(self, cls: Class, name: str) -> bool:
        """``self.example_input_array = torch.rand(2, 4)``, a property of `LightningModule`, which moves it where it
        calls itself with that."""
        return name == "example_input_array" and any(last_word(base) == "LightningModule" for base in self._ends(cls))

    def _is_for_show(self, use: cst.CSTNode) -> bool:
        """``self.encoder(x, mask=self.mask, is_causal=True)``: torch's layers then leave the mask alone."""
        return isinstance(use, cst.Call) and any(
            arg.keyword is not None and arg.keyword.value == "is_causal" and dotted(arg.value) != "False"
            for arg in use.args
        )

    def _is_read_on_host(self, cls: Class) -> bool:
        """``self.policy(obs).detach().numpy()`` of ``self.policy = Policy()``, and nothing moves any `Policy`: its
        modules stay on the host."""
        family = (cls, *cls.descendants)
        if any(move.value.ref in family and move.target.is_there for move in self.flow.facts.moves.values()):
            return False
        for read in self.source.nodes_of(cst.Call):
            if called_name(read) != "numpy" or not isinstance(read.func, cst.Attribute):
                continue
            call = read.func.value
            while isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute) and call.func.attr.value in _SAME:
                call = call.func.value
            if isinstance(call, cst.Call):
                asked = self.flow.value(call.func)
                if asked.kind == MODULE and asked.ref in family and not asked.place.is_there:
                    return True
        return False

    def _meets_moved_to_host(self, cls: Class, name: str) -> bool:
        """Whether another use mixes the attribute with what was brought to the host, where a buffer would then fail."""
        # self.packed = self.packed.cpu(); rows = self.packed >> self.shifts
        for use in self.source.nodes_of(cst.Attribute):
            function = self.flow.function(use)
            if dotted(use) != f"self.{name}" or function is None or function.cls is not cls:
                continue
            part: cst.CSTNode = use
            above = self.parent(part)
            while isinstance(above, cst.Attribute | cst.Subscript) or (
                isinstance(above, cst.Call) and above.func is part
            ):
                part, above = above, self.parent(above)  # self.shifts.unsqueeze(0)[None]
            call = self.parent(above) if isinstance(above, cst.Arg) else None
            if isinstance(above, cst.BinaryOperation):
                operands = [above.left, above.right]
            elif isinstance(call, cst.Call):
                operands = [arg.value for arg in call.args]
            else:
                continue
            if any(self._is_brought_to_host(operand) for operand in operands if operand is not part):
                return True
        return False

    def _brings_parts_back(self, cls: Class) -> bool:
        """``self.packed = self.packed.cpu()``: from there on the class works on the host."""
        return any(
            dotted(target.target).startswith("self.")
            and isinstance(assign.value, cst.Call)
            and isinstance(assign.value.func, cst.Attribute)
            and dotted(assign.value.func.value) == dotted(target.target)
            and (move := self.flow.move(assign.value)) is not None
            and move.target.is_host
            for assign in self.source.nodes_of(cst.Assign)
            for target in assign.targets
            if (function := self.flow.function(assign)) is not None and function.cls is cls
        )

    def _is_brought_to_host(self, node: cst.BaseExpression) -> bool:
        value = self.flow.value(node)
        move = self.flow.move(value.origin) if isinstance(value.origin, cst.Call) else None
        return value.is_tensor and value.place.is_host and move is not None and move.target.is_host

    def _told(
        self,
        statement: cst.CSTNode,
        cls: Class,
        name: str,
        meeting: Meeting,
        container: str,
        what: str,
        *,
        sure: bool,
        on_host: bool,
    ) -> Told:
        """What there is to say of an attribute; those of a class that meet others in one method are told together."""
        there = " ".join(self.code(meeting.there_node).split())[:40]
        message = f"`self.{name}` is a plain {container}: {what} stays on the host when `{cls.name}` is moved"
        return Told(
            statement,
            message,
            f"so does `self.{name}`",
            notes=[self.note(meeting.node, f"here it meets `{there}`, which is on {where(meeting.there.place)}")],
            fix=self._fix(statement, cls, name, on_host=on_host) if container == "attribute" else None,
            key=(cls, self.flow.function(meeting.node), sure),
            tentative=not sure or self._has_host_kernels(cls),
        )

    def _told_kept(self, statement: cst.CSTNode, cls: Class, name: str, meeting: Meeting) -> Told:
        """``self.scale = scale``, of a tensor that the constructor is handed."""
        there = " ".join(self.code(meeting.there_node).split())[:40]
        return Told(
            statement,
            f"`self.{name}` is a plain attribute: it stays where it was handed in when `{cls.name}` is moved",
            f"so does `self.{name}`",
            notes=[self.note(meeting.node, f"here it meets `{there}`, which is on {where(meeting.there.place)}")],
            fix=self._fix(statement, cls, name, on_host=True),
            key=(cls, self.flow.function(meeting.node), False),
            tentative=True,
        )

    def _has_host_kernels(self, cls: Class) -> bool:
        """``torch.nn.quantized.functional.conv1d(x, weight, ...)``: torch has these for the host alone."""
        nodes = (node for owner in cls.lineage for node in tree.walk(owner.node) if isinstance(node, cst.Call))
        return any(self.flow.scope.qualified(node.func).startswith(_HOST_KERNELS) for node in nodes)

    def _fix(self, statement: cst.CSTNode, cls: Class, name: str, *, on_host: bool) -> Fix | None:
        target = only_target(statement)
        value = statement.value if isinstance(statement, cst.Assign | cst.AnnAssign) else None
        if not isinstance(target, cst.Attribute) or value is None:
            return None
        if overrides_attributes(self, cls):
            return None  # def __setattr__(...): self.register_buffer(name, value), which is saved: nothing to add
        others = [s for s, _ in self.flow.stores(cls, name) if s is not statement]
        if any(not isinstance(s, cst.Assign) for s in others):
            return None
        none = [s for s in others if isinstance(s, cst.Assign) and self.code(s.value) == "None"]
        if none:
            # `self.x = None` first: registered there, and what is assigned later stays registered
            if len(none) != 1 or len(none[0].targets) != 1 or not after_super(self, none[0]):
                return None
            if self._is_other_branch(none[0], statement) or is_taken(self, cls, none[0], name):
                return None
            call = f'{self.code(target.value)}.register_buffer("{name}", None, persistent=False)'
            return self.fix(f"register `{name}` as a buffer before it is made", self.replace(none[0], call), safe=False)
        if not after_super(self, statement) or is_taken(self, cls, statement, name):
            return None
        start, _ = self.source.offsets(target)
        value_start, value_end = self.source.offsets(value, outer=True)
        if isinstance(value, cst.Tuple) and not value.lpar:
            return None
        if self.flow.value(value).grad and self.flow.name_of(value):
            return self._as_parameter(value, value_start, value_end, name)
        owner = self.code(target.value)
        return self.fix(
            f"register `{name}` as a buffer",
            self.replace_between(start, value_start, f'{owner}.register_buffer("{name}", '),
            self.replace_between(value_end, value_end, ", persistent=False)"),
            safe=not on_host
            and self.flow.value(value).tracked is False  # a buffer is not trained: self.scale = handed_in
            and not is_handed_on(self, cls, statement, name)
            and not is_set_otherwise(self, statement, name),
        )

    def _as_parameter(self, value: cst.BaseExpression, start: int, end: int, name: str) -> Fix | None:
        """``torch.ones(3, requires_grad=True)``: moved, a buffer is what was computed of that, which no optimizer
        takes (`can't optimize a non-leaf Tensor`, torch 2.13)."""
        below_torch = self.flow.name_of(value).removeprefix("torch")
        spelled = dotted(value.func) if isinstance(value, cst.Call) else ""
        if not below_torch.startswith(".") or not spelled.endswith(below_torch):
            return None  # randn(3, requires_grad=True): what torch is called here is not known
        torch = spelled.removesuffix(below_torch)
        return self.fix(
            f"make `{name}` a parameter",
            self.replace_between(start, start, f"{torch}.nn.Parameter("),
            self.replace_between(end, end, ")"),
            safe=False,  # it is saved, and among `parameters()`, from then on
        )

    def _is_other_branch(self, none: cst.Assign, statement: cst.CSTNode) -> bool:
        """``if basis is None: self.basis = None``, ``else: self.basis = torch.from_numpy(basis)``"""
        around = {branch for _, branch, _ in tests_above(self, statement)}
        return any(branch not in around for _, branch, _ in tests_above(self, none))


def _is_kept_on_host(value: Value) -> bool:
    held = inside(value) if value.kind in _CONTAINERS else [value]
    return any(each.is_tensor and each.place.is_host and not each.zero for each in held)


def _is_moved_by_hand(cls: Class, name: str) -> bool:
    """``def to(self, *a): self.x = self.x.to(*a)``; where `cuda` alone does that, `move-override-skipped` speaks of
    it."""
    mover = cls.find_method("cuda")
    return any(map(cls.find_method, ("_apply", "to"))) or (mover is not None and name in mover.stores)


def _may_be_index(meeting: Meeting) -> bool:
    """``self.layers[i](x, self.where)`` of a part of which nothing is known: it may move that, or index with it."""
    return meeting.there.kind == MODULE and meeting.there.ref is None


def _is_whole(cls: Class) -> bool:
    """Whether a class is `nn.Module` at once, and has parts that somebody has to move: ``L1Penalty(point)``, which only
    compares what it is called with to what it was handed, is where its makers want it."""
    return has_parts(cls) and not any(each.project_bases for each in cls.lineage)


_SETS_LATE = re.compile(r"load|^set_")
_IS_LOSS = re.compile("loss|criterion", re.IGNORECASE)
_HOST_KERNELS = ("torch.nn.quantized.functional.", "torch.ao.nn.quantized.functional.", "torch.ops.quantized.")
_OF_PARAMETERS = ("torch.nn.ParameterDict", "torch.nn.ParameterList")
#: What nn.Module has to register, of which none returns anything.
_REGISTER = ("register_buffer", "register_parameter", "register_module", "add_module")
_OWN_MOVES = frozenset(f"self.{move}" for move in table.MOVES)
_KEPT = ("tensor", "param", "module")
_NUMBERS = (cst.List, cst.Tuple, cst.Float, cst.Integer)
#: What leaves a tensor where it is, before it is read.
_SAME = frozenset("detach squeeze view reshape flatten argmax".split())
#: What is called of a module that others move: by itself, by a trainer, by a metric.
_CALLED = ("forward", "training_step", "validation_step", "test_step", "predict_step", "update")
_CONTAINERS = {LIST: "list", TUPLE: "tuple", DICT: "dict"}
