from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import libcst as cst

from devlint import tree
from devlint.finding import Note, Span
from devlint.flow.hypothesis import names_device
from devlint.flow.scope import Function
from devlint.rule import Rule
from devlint.rules._called_models import called_a_model
from devlint.rules._checkpoints import assigned, has_location, loaded_as, used_as
from devlint.rules._downloads import has_address, is_fetched_from_torch, is_of_torch
from devlint.rules._files import is_file_of_this_run, is_published_file
from devlint.rules._half_the_machines import told_beside, told_without_cuda
from devlint.rules._half_told import half_told
from devlint.rules._load_evidence import (
    device_parameter,
    is_for_cuda_alone,
    said_beside,
    why_it_matters,
)
from devlint.rules._moves import short
from devlint.rules._same_run import is_of_same_run
from devlint.rules._saved_as_it_is import is_saved_as_it_is
from devlint.rules._saved_places import (
    has_another_way,
    is_asked_for,
    is_forgotten_for_host,
    is_of_cuda_program,
    is_of_host,
    is_of_host_elsewhere,
    loads,
    moved,
    moved_and_saved,
    needs_cuda,
    receivers,
)

_DOWNLOADS = ("torch.hub.load_state_dict_from_url", "torch.utils.model_zoo.load_url")
#: Load into the model that they are given; whether what the package itself saves is all on the host. mmcv copies the
#: weights there, and not what is in the optimizer, which `torch.load` reads, too.
_HELPERS = {
    "mmcv.runner.load_checkpoint": False,
    "mmcv.runner.checkpoint.load_checkpoint": False,
    "mmengine.runner.load_checkpoint": True,
    "mmengine.runner.checkpoint.load_checkpoint": True,
}
#: Parts of a checkpoint that holds more than the weights.
_OF_TRAINING = frozenset(
    {"model", "model_state_dict", "model_state", "state_dict", "net", "ema_state_dict", "model_ema"}
)


@dataclass
class _Load:
    """A load without a place: ``what`` starts the message, ``why`` is what shows that it matters, if anything does."""

    call: cst.Call
    what: str
    location: str
    why: Note | None


class LoadWithoutMapLocation(Rule):
    """A checkpoint is loaded to the devices it was saved from, whatever devices there are now.

    ## What it does
    Reports `torch.load(file)` without `map_location` where what is loaded is a checkpoint (its content goes into
    `load_state_dict`, it is used as a model, its `["state_dict"]` is taken, or several parts such as `["model"]` and
    `["optimizer"]`, or the file is called a checkpoint, weights or a snapshot; as tentative, also where what is
    loaded is called a model, `load_model` returns it, or the file that was opened is called a checkpoint). The first
    note says what shows that it matters, where something does: the function takes a `map_location` or a device and
    does not hand it on; only the branch for CUDA says where to; the device is chosen, by an option or by whether
    there is one; another load of the same kind (of the same file, into the same object, in the other branch, right
    beside it) says where to or loads to the host; what is loaded is moved to the host though the file saves models
    from wherever they are; or each process of a distributed run loads it.

    Reports, too, `torch.jit.load(file)` where something shows that it matters; `map_location=device` where `device` is
    a parameter that is `None` by default; `load_state_dict_from_url(url)` without `map_location` of which `["model"]`
    or `["state_dict"]` is taken (what training saved as a whole), or of what another load reads to a place; and
    `load_checkpoint(model, file)` of mmcv, which saves the state of the optimizer from where it is, where something
    shows that it matters. As tentative, a load without a place where only machines without CUDA are told one, and
    `load_from_checkpoint` without one where another in the file has it.

    ## Why is this bad
    A checkpoint remembers the device of each tensor. Without `map_location`, a checkpoint that was saved from a GPU
    cannot be loaded on a machine without one ("Attempting to deserialize object on a CUDA device but
    torch.cuda.is_available() is False"), nor one saved from `cuda:3` where there are two. Under several processes every
    one of them loads its copy onto the device of the process that saved it, and that device runs out of memory.

    ## Example
    ```python
    import torch


    def resume(model, path):
        device = "cuda" if torch.cuda.is_available() else "cpu"
        checkpoint = torch.load(path)
        model.load_state_dict(checkpoint["model"])
        return model.to(device)
    ```

    ## Use instead
    ```python
    import torch


    def resume(model, path):
        device = "cuda" if torch.cuda.is_available() else "cpu"
        checkpoint = torch.load(path, map_location="cpu")
        model.load_state_dict(checkpoint["model"])
        return model.to(device)
    ```

    ## Fix safety
    The fix adds the function's own `map_location` argument where it takes one, else the name that all other loads above
    it use, else its `device`, else `map_location="cpu"`, also where the function moves the model to its `device` only
    afterwards. It is unsafe: code that relied on tensors being on the saved device has to move them. `load_state_dict`
    copies values to where the parameters are, so nothing else changes for it.

    ## Limits
    Who wrote the file cannot be seen, so that only this is not tentative: a note says why it matters, what is loaded
    goes into a model or an optimizer, and the file itself saves the state of one, as it is, from wherever that is; or
    the function takes a `map_location`, and does not hand it on. What one function loads is one finding, and so are
    loads in statements of a script right below each other.

    The rest is tentative. So is a device that is `None` by default; what training begins with (`config.pretrained`),
    for others have published it; what is downloaded from an address in the file (whoever published it may have saved it
    from the host, as torchvision did: with one of its addresses in the file, or around the load, the rule is silent),
    or in a file where another load says where to; `load_checkpoint` of mmengine; a place that tells only the host from
    the rest (`"cpu" if device == "cpu" else None`, or else `"cuda:0"`); files that a function downloads, or that have
    one fixed place; and what a class moves to a device, saves, and loads again under the same name. The last has no
    fix: the tensor would have to be moved after it.

    Of 39 findings in 65 repositories that nobody had tuned for, strict readers held 27 for true and 8 for wrong, and 53
    of 79 in 97 more: those were files that hold host tensors since others saved them so, and code that computes with
    what it loaded and a model on CUDA, which `map_location="cpu"` would break. Of 29 more in 197 repositories, of a
    form that was nearly the present one, they held 21 for true and two for wrong. Of 56 in 353 more, they held 37 for
    true and five for wrong: 14 rest on programs that need CUDA for something else anyway, on files that nobody saves,
    and on code that nobody runs. That is too many for a rule that is on by default. What they showed is mended. Of 20
    in 234 more, readers held 17 for true and none for wrong; in the three others nothing is ever saved elsewhere.

    Silent for data sets, scores, settings and other files that nothing shows to be checkpoints (that the folder is
    called so is not enough where the file has another name), for what a scaler or a scheduler loads, which are numbers,
    in tests, for what the same run saved or trained just before (in the same function, in one that was called above,
    also by all that call this one, or by fitting what was given the callback that names the file), for what stops
    training early, for files that lie in a temporary folder of the function or belong to one process (also where the
    calls in the file say so), where the file saves from the host only (what it moved, made, or read there, also entry
    by entry) or gathers what FSDP sharded, where another file of the same folder below the project's, or of a package
    that the file imports, moves each tensor to the host and saves it, where the function moves what it loads to CUDA
    whatever there is, for a call that is tried first and repeated with `map_location`, and where another branch for
    other machines gives it. Whether the file really came from a GPU cannot be seen in the code.

    ## References
    - [torch.load](https://pytorch.org/docs/stable/generated/torch.load.html)
    - [Saving and loading models across devices](https://pytorch.org/tutorials/recipes/recipes/save_load_across_devices.html)
    """

    group = "nursery"
    fixable = "sometimes"

    def check(self) -> None:
        if self.in_tests:
            return  # what a test loads it has just saved
        found: dict[tuple[object, bool], list[_Load]] = {}
        by_name: dict[object, list[_Load]] = {}
        before: cst.Call | None = None
        key: object = None
        calls = set(self.flow.calls("torch.load"))
        # the flow takes the way of those who have a device
        calls.update(call for call in loads(self) if is_forgotten_for_host(self, call))
        for call in (call for call in self.source.nodes_of(cst.Call) if call in calls):
            function = self.flow.function(call)
            is_plain = function is not None and not function.name.startswith("__")  # __init__ keeps it for later
            taken = device_parameter(function) if is_plain else None
            what = self._fault(call, function, taken)
            if what is None and self._kept(call, function):
                continue
            if what is None:
                self._left_open(call, function)
                if (load := self._called(call, function)) is not None:
                    by_name.setdefault(function or call, []).append(load)
                continue
            why = self._why(call, taken)
            if function is not None:
                key = function
            elif before is None or not self._follows(before, call):
                key = call
            before = call
            load = _Load(call, what, self._location(call, function, taken), why)
            # who reads what others have published may know where that was saved from
            found.setdefault((key, is_published_file(self, call)), []).append(load)
        for (_, is_published), together in found.items():
            # who saved a file that others wrote, and from where, cannot be seen
            shown = any(each.why is not None for each in together) and any(map(self._is_kept_here, together))
            self._report(together, tentative=not shown or is_published or is_of_cuda_program(self))
        for call in self.flow.calls("torch.jit.load"):
            self._scripted(call)
        for together in by_name.values():
            self._report(together, tentative=True)
        reported = {each.call for together in (*found.values(), *by_name.values()) for each in together}
        for call, other in (*told_without_cuda(self), *told_beside(self)):
            if call not in reported:
                self._beside_told(call, other)
        downloads = [call for call in self.flow.calls(*_DOWNLOADS) if not has_location(call, 2)]
        self._published([call for call in downloads if not self._downloaded(call)])
        for name, on_host in _HELPERS.items():
            for call in self.flow.calls(name):
                self._helped(call, on_host)

    def _scripted(self, call: cst.Call) -> None:
        """``net = torch.jit.load(path); net.to(device)``: a script remembers its devices as a checkpoint does."""
        if not call.args or has_location(call) or self._is_excused(call, self.flow.function(call)):
            return
        why = why_it_matters(self, call)
        if why is not None:
            location = said_beside(self, call) or '"cpu"'
            self._report([_Load(call, "the scripted model", location, why)], tentative=True)

    def _called(self, call: cst.Call, function: Function | None) -> _Load | None:
        """``net = torch.load(path)``, ``def load_model(path): return torch.load(path)``"""
        what = None if has_location(call) else called_a_model(self, call, function)
        if what is None or self._is_excused(call, function) or is_for_cuda_alone(self, call):
            return None
        location = said_beside(self, call) or '"cpu"'
        return None if is_of_cuda_program(self) else _Load(call, what, location, why_it_matters(self, call))

    def _beside_told(self, call: cst.Call, other: cst.Call) -> None:
        """``torch.load(f) if use_cuda else torch.load(f, "cpu")``: there may be fewer GPUs than there were."""
        edit = self.add_argument(call, 'map_location="cpu"')
        self.report(
            call,
            f"`{short(self.code(call.func))}` loads to the devices that it was saved from here",
            notes=[self.note(other, "this one says where to")],
            fix=self.fix('add `map_location="cpu"`', edit, safe=False) if edit is not None else None,
            tentative=True,
        )

    def _is_kept_here(self, load: _Load) -> bool:
        """Whether the file saves such a state as well, from wherever that is, or the function has a place for it."""
        function = self.flow.function(load.call)
        if load.location == "map_location" and function is not None and function.param(load.location):
            return True  # def restore(path, map_location=None): return torch.load(path)
        return is_saved_as_it_is(self, load.call, function)

    @cached_property
    def _saves_such(self) -> bool:
        """Whether the file saves, too, what it loads: the state of what may be on a device."""
        return bool(self.flow.calls("torch.save")) and ".state_dict()" in self.source.text

    def _left_open(self, call: cst.Call, function: Function | None) -> None:
        """``def restore(path, device=None): ... torch.load(path, map_location=device)``: ``None`` says nothing."""
        given = next((arg.value for arg in call.args if arg.keyword and arg.keyword.value == "map_location"), None)
        if given is not None and (what := loaded_as(self, call, to_hand_on=False)) is not None:
            self._half_told(call, what, given)
        if function is None or not isinstance(given, cst.Name) or not names_device(given.value):
            return
        param = function.param(given.value)
        if param is None or not isinstance(param.default, cst.Name) or param.default.value != "None":
            return
        # if device is None: device = "cpu", or another way for what was not told
        told = self._is_bound_above(given, function) or re.search(
            rf"\b{given.value}\b( is| or|:)", self._tests(function)
        )
        if not told and (what := loaded_as(self, call, to_hand_on=False)) is not None:
            self.report(
                call,
                f"{what} is loaded to the devices that it was saved from where `{given.value}` is not given",
                notes=[self.note(param, "`None` by default, which `map_location` takes as if it were not there")],
                fix=self.fix("load to the host then", self.replace(given, f'{given.value} or "cpu"'), safe=False),
                tentative=True,  # all who call may give it
            )

    def _is_bound_above(self, given: cst.Name, function: Function) -> bool:
        """``device = resolve(device)`` above the load; below, it comes too late."""
        return given.value in function.assigned and any(
            self.flow.function(node) is function
            and any(each.value == given.value for target in node.targets for each in tree.named(target, given.value))
            and self.source.comes_before(node, given)
            for node in self.source.nodes_of(cst.Assign)
        )

    def _tests(self, function: Function) -> str:
        """The code that a function decides on."""
        kinds = (cst.If, cst.IfExp, cst.BooleanOperation)
        nodes = (each for each in tree.walk(function.node) if isinstance(each, kinds))
        tests = (each if isinstance(each, cst.BooleanOperation) else each.test for each in nodes)
        return "".join(f"{self.code(test)}:" for test in tests)

    def _kept(self, call: cst.Call, function: Function | None) -> bool:
        """``self.queue = torch.load(self.path)["queue"]``, which other methods have moved, and saved there."""
        move = None if has_location(call) or not call.args else moved_and_saved(self, call, function)
        if move is None or self._is_excused(call, function):
            return False
        name = ", ".join(assigned(self, call))
        self.report(
            call,
            f"`{name}` is loaded to the devices that it was saved from: `map_location` is missing",
            notes=[self.note(move.node, f"`{name}` is moved here, and saved from there")],
            tentative=True,  # the same run, or one with the same devices, may be all that reads it
        )
        return True

    def _half_told(self, call: cst.Call, what: str, given: cst.BaseExpression) -> None:
        """``torch.load(f, map_location="cpu" if device == "cpu" else None)``: nobody asks which of the devices."""
        told = half_told(self, given)
        if told is None:
            return
        device = self.code(told.device)
        there = "the devices that it was saved from" if told.place is None else f"`{told.place}`"
        self.report(
            call,
            f"{what} is loaded to {there} wherever `{device}` is, unless it is the host",
            notes=[self.note(told.test, f"which of the others `{device}` is goes unasked")],
            fix=self.fix("load to the host", self.replace(given, '"cpu"'), safe=False),
            tentative=True,  # there may be one device and no other
        )

    def _downloaded(self, call: cst.Call) -> bool:
        """``load_state_dict_from_url(url)["model"]``: what training saved as a whole is on the device it trained on."""
        names, function = assigned(self, call), self.flow.function(call)
        for part in self.source.nodes_of(cst.Subscript):
            index = part.slice[0].slice
            key = index.value if isinstance(index, cst.Index) else None
            if not isinstance(key, cst.SimpleString) or key.evaluated_value not in _OF_TRAINING:
                continue
            if part.value is call or (self.code(part.value) in names and self.flow.function(part) is function):
                edit = self.add_argument(call, 'map_location="cpu"')
                self.report(
                    call,
                    "what training saved is loaded to the devices that it was saved from: `map_location` is missing",
                    notes=[self.note(part, "one part of a checkpoint, so it was saved from where the training ran")],
                    fix=self.fix('add `map_location="cpu"`', edit, safe=False) if edit is not None else None,
                    tentative=True,
                )
                return True
        return False

    def _published(self, calls: list[cst.Call]) -> None:
        """``net.load_state_dict(load_state_dict_from_url(url))``: who published it knows where it was saved from."""
        if not calls or is_of_torch(self):
            return  # what torchvision publishes was saved from the host, and it loads that without a location itself
        others = [other for other in loads(self) if has_location(other)]
        open_ones: list[_Load] = []
        for call in calls:
            function = self.flow.function(call)
            what = used_as(self, call, function)  # checkpoint = load_url(url); return checkpoint  may be of torch
            if what is None or is_for_cuda_alone(self, call) or needs_cuda(self, call, function):
                continue
            # load_url(file) if file.startswith("http") else torch.load(file, map_location="cpu"); another file of
            # another kind says nothing of what was published
            same = [other for other in others if self._reads_the_same(call, other)]
            why = next((self.note(other, "this one says where to") for other in same or others), None)
            load = _Load(call, what, said_beside(self, call) or '"cpu"', why)
            if same:
                self._report([load], tentative=True)
            elif others or has_address(self):
                open_ones.append(load)
        if open_ones:
            self._report(open_ones, tentative=True)

    def _reads_the_same(self, call: cst.Call, other: cst.Call) -> bool:
        """Whether two loads of a function read what goes by one name."""
        together = self.flow.function(call) is self.flow.function(other) is not None
        return together and bool(call.args) and self.code(call.args[0].value) == self.code(other.args[0].value)

    def _helped(self, call: cst.Call, on_host: bool) -> None:
        """``load_checkpoint(net, path); net.to(device)``: loads what it is given as `torch.load` does."""
        if len(call.args) < 2 or call.args[0].keyword is not None:
            return
        model, file = (self.code(arg.value) for arg in call.args[:2])
        what = f"the checkpoint for `{short(model)}`"
        if has_location(call, 2):
            given = next((arg.value for arg in call.args if arg.keyword and arg.keyword.value == "map_location"), None)
            if given is not None:
                self._half_told(call, what, given)
            return
        # load_checkpoint(self, pretrained), load_checkpoint(net, "open-mmlab://vgg16"): published, and from the host
        if "pretrained" in file or "://" in file:
            return
        why = why_it_matters(self, call)
        moves = moved(self, {model}, self.flow.function(call))
        # load_checkpoint(net, path); net.cuda()
        if why is not None and not any(move.target.kind == "fixed" and not is_asked_for(self, move) for move in moves):
            load = _Load(call, what, said_beside(self, call) or '"cpu"', why)
            self._report([load], tentative=on_host or not self._saves_such)

    def _fault(self, call: cst.Call, function: Function | None, taken: cst.Param | None) -> str | None:
        """What is loaded, where it is a checkpoint and nothing makes it right as it is."""
        if not call.args or has_location(call):
            return None
        to_hand_on = taken is not None and taken.name.value == "map_location"
        what = loaded_as(self, call, to_hand_on=to_hand_on)
        return what if what is not None and not self._is_excused(call, function) else None

    def _is_excused(self, call: cst.Call, function: Function | None) -> bool:
        """Whether it is right as it is, whatever is loaded."""
        if is_of_same_run(self, call) or has_another_way(self, call) or is_file_of_this_run(self, call):
            return True
        if is_fetched_from_torch(self, call):
            return True  # what torchvision publishes was saved from the host
        if is_of_host(self, call, function) or needs_cuda(self, call, function):
            return True
        return is_of_host_elsewhere(self)

    def _why(self, call: cst.Call, taken: cst.Param | None) -> Note | None:
        """What shows that it matters where to: a `map_location` always, a device where it may be the host."""
        if taken is None:
            return why_it_matters(self, call)
        if taken.name.value != "map_location" and is_for_cuda_alone(self, call):
            return None
        return self.note(taken, "given by whoever calls")

    def _location(self, call: cst.Call, function: Function | None, taken: cst.Param | None) -> str:
        """What the fix gives: what the function takes for it, but the host where the model still is there."""
        if taken is None or taken.name.value != "map_location":
            beside = said_beside(self, call)  # as the other loads of the function have it
            if beside is not None:
                return beside
        if taken is None:
            return '"cpu"'
        models = receivers(self, call, function).difference(assigned(self, call))
        moves = [move.node for move in moved(self, models, function)]
        # net.load_state_dict(torch.load(f)); return net.to(device)
        later = bool(moves) and all(self.source.comes_before(call, move) for move in moves)
        return '"cpu"' if later and taken.name.value != "map_location" else taken.name.value

    def _report(self, together: list[_Load], *, tentative: bool) -> None:
        """Report what one function loads as one finding: whoever mends the first mends them all."""
        first, *others = together
        why = next((each.why for each in together if each.why is not None), None)
        edits = [self.add_argument(each.call, f"map_location={each.location}") for each in together]
        fix = self.fix(f"add `map_location={first.location}`", *(e for e in edits if e is not None), safe=False)
        function = self.flow.function(first.call)
        dropped = first.location == "map_location" and function is not None and function.param("map_location")
        self.report(
            first.call,
            f"{first.what} is loaded to the devices that it was saved from: `map_location` "
            f"{'is not handed on' if dropped else 'is missing'}",
            notes=[
                *([why] if why is not None else []),
                *(self.note(each.call, "here, too") for each in others),
            ],
            fix=fix if None not in edits else None,
            tentative=tentative,
        )

    def _learned_elsewhere(self, node: cst.CSTNode, span: Span, notes: tuple[Note, ...]) -> tuple[Note, ...]:
        """None: that the class around is a module, as another file says, has nothing to do with what it loads."""
        return ()

    def _follows(self, before: cst.Call, call: cst.Call) -> bool:
        """Whether a load stands in the statement right below another one."""
        first, second = (self.enclosing(each, cst.SimpleStatementLine) for each in (before, call))
        if first is None or second is None:
            return False
        block = self.parent(first)
        if block is not self.parent(second) or not isinstance(block, cst.IndentedBlock | cst.Module):
            return False
        lines = list(block.body)
        return lines.index(second) - lines.index(first) == 1
