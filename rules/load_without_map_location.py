from __future__ import annotations

import re
from dataclasses import dataclass

import libcst as cst

from devlint import tree
from devlint.finding import Note, Span
from devlint.flow.hypothesis import names_device
from devlint.flow.scope import Function
from devlint.rule import Rule
from devlint.rules._checkpoints import assigned, has_location, loaded_as
from devlint.rules._files import is_known_file
from devlint.rules._load_evidence import device_parameter, is_for_cuda_alone, why_it_matters
from devlint.rules._same_run import is_of_same_run
from devlint.rules._saved_places import (
    has_another_way,
    is_forgotten_for_host,
    is_of_host,
    loads,
    moved,
    needs_cuda,
    receivers,
)

_DOWNLOADS = ("torch.hub.load_state_dict_from_url", "torch.utils.model_zoo.load_url")
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
    `load_state_dict`, it is used as a model, or the file is called a checkpoint, weights or a snapshot). The first note
    says what shows that it matters, where something does: the function takes a `map_location` or a device and does not
    hand it on; only the branch for CUDA says where to; the device is chosen, by an option or by whether there is one;
    another load of the same kind (of the same file, into the same object, in the other branch, right beside it) says
    where to or loads to the host; what is loaded is moved to the host though the file saves models from wherever they
    are; or each process of a distributed run loads it.

    Reports, too, `map_location=device` where `device` is a parameter that is `None` by default, and
    `load_state_dict_from_url(url)` without `map_location` of which `["model"]` or `["state_dict"]` is taken: what
    training saved as a whole.

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
    The fix adds the function's own `map_location` or `device` argument where it takes one, else `map_location="cpu"`,
    also where the function moves the model to its `device` only afterwards. It is unsafe: code that relied on tensors
    being on the saved device has to move them. `load_state_dict` copies values to where the parameters are, so nothing
    else changes for it.

    ## Limits
    In the nursery: in three samples of repositories that nobody had tuned for, 28 of 47 findings were worth a change,
    and those were only the ones for which the code shows why it matters (the device is chosen, another load says where
    to, a parameter is not handed on, each process loads): a note says so. Without such a note the finding is weaker
    still: libraries and converters that load what they are given, code that thinks of CUDA alone, what the main process
    alone loads, samples below `if __name__ == "__main__":`. What one function loads is one finding, and so are loads in
    statements of a script right below each other.

    Silent for data sets, scores, settings and other files that nothing shows to be checkpoints (that the folder is
    called so is not enough where the file has another name), in tests, for what the same run saved or trained just
    before (in the same function, in one that was called above, also by all that call this one, or by fitting what was
    given the callback that names the file), for what stops training early, for files that are downloaded, lie in a
    temporary folder of the function or belong to one process (also where the calls in the file say so), where the file
    saves from the host only (what it moved, made, or read there) or gathers what FSDP sharded, where the function moves
    what it loads to CUDA whatever there is, for a call that is tried first and repeated with `map_location`, and where
    another branch for other machines gives it. Whether the file really came from a GPU cannot be seen in the code.

    ## References
    - [torch.load](https://pytorch.org/docs/stable/generated/torch.load.html)
    - [Saving and loading models across devices](https://pytorch.org/tutorials/recipes/recipes/save_load_across_devices.html)
    """

    group = "nursery"
    fixable = "always"

    def check(self) -> None:
        if self.in_tests:
            return  # what a test loads it has just saved
        found: dict[object, list[_Load]] = {}
        before: cst.Call | None = None
        key: object = None
        calls = dict.fromkeys(self.flow.calls("torch.load"))  # a loop is followed more than once
        # the flow takes the way of those who have a device
        calls.update(dict.fromkeys(call for call in loads(self) if is_forgotten_for_host(self, call)))
        for call in sorted(calls, key=self.source.offsets):
            function = self.flow.function(call)
            is_plain = function is not None and not function.name.startswith("__")  # __init__ keeps it for later
            taken = device_parameter(function) if is_plain else None
            what = self._fault(call, function, taken)
            if what is None:
                self._left_open(call, function)
                continue
            why = self._why(call, taken)
            if function is not None:
                key = function
            elif before is None or not self._follows(before, call):
                key = call
            before = call
            found.setdefault(key, []).append(_Load(call, what, self._location(call, function, taken), why))
        for together in found.values():
            self._report(together)
        for name in _DOWNLOADS:
            for call in dict.fromkeys(self.flow.calls(name)):
                self._downloaded(call)

    def _left_open(self, call: cst.Call, function: Function | None) -> None:
        """``def restore(path, device=None): ... torch.load(path, map_location=device)``: ``None`` says nothing."""
        given = next((arg.value for arg in call.args if arg.keyword and arg.keyword.value == "map_location"), None)
        if function is None or not isinstance(given, cst.Name) or not names_device(given.value):
            return
        param = function.param(given.value)
        if param is None or not isinstance(param.default, cst.Name) or param.default.value != "None":
            return
        # if device is None: device = "cpu", or another way for what was not told
        told = given.value in function.assigned or re.search(rf"\b{given.value}\b( is| or|:)", self._tests(function))
        if not told and (what := loaded_as(self, call, to_hand_on=False)) is not None:
            self.report(
                call,
                f"{what} is loaded to the devices that it was saved from where `{given.value}` is not given",
                notes=[self.note(param, "`None` by default, which `map_location` takes as if it were not there")],
                fix=self.fix("load to the host then", self.replace(given, f'{given.value} or "cpu"'), safe=False),
            )

    def _tests(self, function: Function) -> str:
        """The code that a function decides on."""
        kinds = (cst.If, cst.IfExp, cst.BooleanOperation)
        nodes = (each for each in tree.walk(function.node) if isinstance(each, kinds))
        tests = (each if isinstance(each, cst.BooleanOperation) else each.test for each in nodes)
        return "".join(f"{self.code(test)}:" for test in tests)

    def _downloaded(self, call: cst.Call) -> None:
        """``load_state_dict_from_url(url)["model"]``: what training saved as a whole is on the device it trained on."""
        placed = len(call.args) > 2 and call.args[2].keyword is None
        if placed or any(arg.star or (arg.keyword and arg.keyword.value == "map_location") for arg in call.args):
            return
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
                )
                return

    def _fault(self, call: cst.Call, function: Function | None, taken: cst.Param | None) -> str | None:
        """What is loaded, where it is a checkpoint and nothing makes it right as it is."""
        if not call.args or has_location(call):
            return None
        what = loaded_as(self, call, to_hand_on=taken is not None and taken.name.value == "map_location")
        if what is None or is_of_same_run(self, call) or has_another_way(self, call):
            return None
        if is_known_file(self, call) or is_of_host(self, call, function) or needs_cuda(self, call, function):
            return None
        return what

    def _why(self, call: cst.Call, taken: cst.Param | None) -> Note | None:
        """What shows that it matters where to: a `map_location` always, a device where it may be the host."""
        if taken is None:
            return why_it_matters(self, call)
        if taken.name.value != "map_location" and is_for_cuda_alone(self, call):
            return None
        return self.note(taken, "given by whoever calls")

    def _location(self, call: cst.Call, function: Function | None, taken: cst.Param | None) -> str:
        """What the fix gives: what the function takes for it, but the host where the model still is there."""
        if taken is None:
            return '"cpu"'
        models = receivers(self, call, function).difference(assigned(self, call))
        moves = [self.source.offsets(move.node)[0] for move in moved(self, models, function)]
        # net.load_state_dict(torch.load(f)); return net.to(device)
        later = bool(moves) and min(moves) > self.source.offsets(call)[0]
        return '"cpu"' if later and taken.name.value != "map_location" else taken.name.value

    def _report(self, together: list[_Load]) -> None:
        """Report what one function loads as one finding: whoever mends the first mends them all."""
        first, *others = together
        why = next((each.why for each in together if each.why is not None), None)
        edits = [self.add_argument(each.call, f"map_location={each.location}") for each in together]
        fix = self.fix(f"add `map_location={first.location}`", *(e for e in edits if e is not None), safe=False)
        dropped = first.location == "map_location"
        self.report(
            first.call,
            f"{first.what} is loaded to the devices that it was saved from: `map_location` "
            f"{'is not handed on' if dropped else 'is missing'}",
            notes=[
                *([why] if why is not None else []),
                *(self.note(each.call, "here, too") for each in others),
            ],
            fix=fix if None not in edits else None,
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
