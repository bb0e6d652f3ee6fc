from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from devlint import tree
from devlint.flow.names import dotted, last_word, names_bound
from devlint.flow.scope import Class, Function
from devlint.rule import Rule
from devlint.rules._arguments import handed_in
from devlint.rules._children_visible import counted_for_children
from devlint.rules._environment import given, settings_of
from devlint.rules._meetings import calls_that_run
from devlint.rules._moves import short
from devlint.rules._numbered import devices_numbered
from devlint.rules._order_of_runs import excludes, runs_after
from devlint.rules._set_late import cuda_uses, is_for_others, surely_before
from devlint.rules._several_numbers import joined_from, list_of, lists_numbered, split_from
from devlint.rules._switches import tests_above


class VisibleDeviceRenumbered(Rule):
    """A device is named by the number it had before `CUDA_VISIBLE_DEVICES` left only that one.

    ## What it does
    Reports a number that `CUDA_VISIBLE_DEVICES`, `HIP_VISIBLE_DEVICES` or `ROCR_VISIBLE_DEVICES` is set to, and that
    names a device afterwards: `torch.device(f"cuda:{args.gpu}")`, `model.cuda(gpu)`, `torch.cuda.set_device(gpu)`; and
    literal numbers for which too few devices are left: `"cuda:3"` after `"2,3"`. Reports, too, children that are told a
    GPU by counting (`{"CUDA_VISIBLE_DEVICES": str(i)} for i in range(n)`), in a file that never asks which ones it has.

    ## Why is this bad
    The devices that are left visible are counted from 0. With `--gpu 3`, the third of them is the only one, and its
    name is `cuda:0`: `cuda:3` fails with "invalid device ordinal". It goes well with `--gpu 0`, which is the default,
    and so nobody notices until somebody asks for another one.

    ## Example
    ```python
    import os

    import torch


    def choose_device(args):
        os.environ["CUDA_VISIBLE_DEVICES"] = str(args.gpu)
        return torch.device(f"cuda:{args.gpu}")
    ```

    ## Use instead
    ```python
    import os

    import torch


    def choose_device(args):
        os.environ["CUDA_VISIBLE_DEVICES"] = str(args.gpu)
        return torch.device("cuda")
    ```

    ## Fix safety
    No fix is offered: either the variable goes, or the number. Libraries that take the first device for granted are
    easier to use with the variable, and it has to be set before CUDA is used.

    ## Limits
    Numbers are followed by their names within a function and into those that are handed them, and as `args.gpu` or
    `config["gpu"]` through the file. Whether another file has used CUDA before is not seen. Silent where the name gets
    another value between, where the two stand in branches that exclude each other, where CUDA was used before
    (`visible-devices-set-late` speaks of that: the variable changes nothing then), where the variable is for other
    processes, where the number of visible devices is asked, and in tests. Several numbers joined by commas are followed
    where they are split up (`gpus = args.gpu.split(",")`), and are told one by one or as `device_ids`.

    Not proved by running: the driver reads the variable, and imaginary devices have none.

    In the nursery: of five places in some 75,000 public files that nobody had tuned for, three were wrong as it says,
    one arguable, and one was right, since another file uses CUDA on import.

    ## References
    - [CUDA environment variables](https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-environment-variables)
    - [torch.cuda](https://pytorch.org/docs/stable/notes/cuda.html)
    """

    group = "nursery"

    def check(self) -> None:
        text = self.source.text
        if "_VISIBLE_DEVICES" not in text or "torch" not in text or self.in_tests:
            return
        for told, counts in counted_for_children(self):
            said = f"`{short(self.code(told))}` counts the GPUs of the machine, whichever are left to this process"
            self.report(told, said, notes=[self.note(counts, "it is counted from 0 here")])
        settings = [Setting(node, name, self.values_of(node, name)) for node, name, _ in settings_of(self, _VARIABLES)]
        if not settings:
            return
        uses = cuda_uses(self)
        settings = [each for each in settings if not any(surely_before(self, use, each.node) for use in uses)]
        settings = [each for each in settings if not is_for_others(self, each.node)]
        done: set[cst.CSTNode] = set()
        for node, number in (*devices_numbered(self), *self._literals(), *lists_numbered(self)):
            if number in done or self._asks_for_count(node):
                continue
            for setting in settings:
                said = ""
                if self._is_last_before(setting, node, settings):
                    said = self._fault(number, setting) or self._fault_of_several(node, number, setting)
                if said:
                    done.add(number)
                    self.report(node, said, notes=[self.note(setting.node, f"`{setting.name}` is set here")])
                    break

    def values_of(self, node: cst.CSTNode, name: str) -> list[cst.BaseExpression]:
        value = given(self, node, name)
        return [_plain(side) for side in _sides(value)] if value is not None else []

    def _is_last_before(self, setting: Setting, node: cst.CSTNode, settings: list[Setting]) -> bool:
        """Whether a setting is in force where a device is numbered, and no other one may be."""
        if not runs_after(self, node, setting.node):
            return self._is_kept_until(setting.node, node)
        home = self.flow.function(setting.node)
        return not any(
            # os.environ[...] = args.gpu; ...; os.environ[...] = "0,1,2,3"
            other is not setting
            and self.flow.function(other.node) is home
            and self.source.comes_before(setting.node, other.node)
            and runs_after(self, other.node, setting.node)
            and runs_after(self, node, other.node)
            for other in settings
        )

    def _is_kept_until(self, setting: cst.CSTNode, node: cst.CSTNode) -> bool:
        """``device = torch.device(f"cuda:{gpu}"); os.environ["CUDA_VISIBLE_DEVICES"] = gpu``: a name alone uses
        nothing, and waits until the variable is set."""
        # net = net.cuda(gpu)   uses it
        if isinstance(node, cst.Call) and last_word(dotted(node.func)) not in ("device", "format", ""):
            return False
        statement = self.enclosing(node, cst.Assign, cst.FunctionDef)
        name = dotted(statement.targets[0].target) if isinstance(statement, cst.Assign) else ""
        device = self.parent(self.parent(node) or node)  # torch.device(f"cuda:{gpu}")
        is_name = isinstance(statement, cst.Assign) and any(
            value is each for value in tree.sides(statement.value) for each in (node, device)
        )
        if not name or not is_name or self.flow.function(node) is not self.flow.function(setting):
            return False
        if isinstance(device, cst.Call) and self.flow.scope.qualified(device.func) != "torch.device":
            return False
        function = self.flow.function(node)
        around = function.node.body if function is not None else self.source.module
        inside = set(tree.walk(statement))
        before = self.source.comes_before
        between = (
            part
            for part in tree.walk(around)
            if _is_name(part) and before(statement.value, part) and not before(setting, part) and part not in inside
        )
        return runs_after(self, setting, node) and not any(_path(part) == name for part in between)

    def _asks_for_count(self, node: cst.CSTNode) -> bool:
        """``if gpu < torch.cuda.device_count(): torch.cuda.set_device(gpu)``"""
        return any("device_count" in tree.words(test) for test, _, _ in tests_above(self, node))

    def _fault(self, number: cst.BaseExpression, setting: Setting) -> str:
        """What is wrong with a number, once a variable is set; empty where nothing is."""
        index = _index(number)
        if index is not None:
            count = setting.count
            if not count or index < count:
                return ""
            left = "one device is" if count == 1 else f"{count} devices are"
            return f"no device has the number {index} here: {left} visible, counted from 0"
        number = _plain(number)
        if dotted(number).partition(".")[0] == "torch":
            return ""
        told = {(path, owner): node for path, owner, node in self._origins(number)}
        for value in setting.values:
            for path, owner, node in self._origins(value):
                later = told.get((path, owner))
                if later is None or self._is_given_anew(path, node, later) or self._holds_several(path):
                    continue
                code = short(self.code(number))
                return f"`{code}` is the number of before: the device that is left visible has the number 0"
        return ""

    def _fault_of_several(self, node: cst.BaseExpression, number: cst.BaseExpression, setting: Setting) -> str:
        """``gpus = args.gpu.split(",")``, and ``f"cuda:{gpus[0]}"`` where ``args.gpu`` says which are visible."""
        several = list_of(self, number)
        if several is None and isinstance(node, cst.Call) and "DataParallel" in last_word(dotted(node.func)):
            several = number
        if several is None:
            return ""  # f"cuda:{args.gpu}", which may be told one
        told = {(path, owner): name for path, owner, name in self._lists(several)}
        for value in setting.values:
            for path, owner, first in self._lists(joined_from(value) or value):
                later = told.get((path, owner))
                if later is None or self._is_given_anew(path, first, later):
                    continue
                # cfg.ids = list(range(len(cfg.ids)))
                if any("range" in tree.words(bound) for bound, _ in self._bound(path, owner) if bound is not None):
                    continue
                # DataParallel(net, args.gpus), which may be a list that is told otherwise
                if several is number and split_from(number) is None and not self._holds_several(path):
                    continue
                return f"`{short(self.code(number))}` counts as before: the devices that are left are counted from 0"
        return ""

    def _lists(self, node: cst.BaseExpression) -> Iterator[tuple[str, Function | Class | None, cst.BaseExpression]]:
        """The names that a list of numbers has, and that of what it was split from."""
        for told in (split_from(node) or node,):
            for path, owner, name in self._origins(told):
                yield path, owner, name
                bound = self._bound(path, owner)
                value = bound[0][0] if len(bound) == 1 else None
                if value is not None and (source := split_from(value) or joined_from(value)) is not None:
                    yield from self._origins(source)

    # names --------------------------------------------------------------------------------------

    def _origins(
        self, node: cst.BaseExpression, steps: int = 3
    ) -> Iterator[tuple[str, Function | Class | None, cst.BaseExpression]]:
        """The names that a number has: its own, that which it was copied from, and what a parameter is handed."""
        node = _plain(node)
        path = _path(node)
        if not path:
            return
        owner = self._owner(path, node)
        yield path, owner, node
        if not steps:
            return
        bound = self._bound(path, owner)
        if len(bound) == 1 and bound[0][0] is not None:
            yield from self._origins(bound[0][0], steps - 1)  # self.gpu = int(args.gpu)
        elif not bound and isinstance(owner, Function) and path in owner.param_names:
            for call in calls_that_run(self, owner):
                handed = handed_in(call, owner, path)
                if handed is not None:
                    yield from self._origins(handed, steps - 1)  # train(args.gpu)

    def _owner(self, path: str, node: cst.CSTNode) -> Function | Class | None:
        """Whose name it is: a function's, a class's for `self.gpu`; that of the file for `args.gpu`."""
        head = re.split(r"[.\[]", path, maxsplit=1)[0]
        function = self.flow.function(node)
        if head == "self":
            return function.cls if function is not None else None
        while function is not None and head == path:
            if head in function.param_names or head in function.assigned:
                return function
            function = function.outer
        return None

    def _is_given_anew(self, path: str, first: cst.CSTNode, later: cst.CSTNode) -> bool:
        """Whether a name may get another value between two places."""
        home, place = self.flow.function(first), self.flow.function(later)
        for value, node in self._bound(path, self._owner(path, first)):
            function = self.flow.function(node)
            if value is not None and any(_path(part) == path for part in tree.walk(value) if _is_name(part)):
                continue  # args.gpu = int(args.gpu)
            if function is home and excludes(self, first, node):
                continue  # else: gpu = 0
            if function is place and place is not home and self.source.comes_before(later, node):
                continue
            if function is home is place and self.source.comes_before(later, node):
                continue
            is_above = function is home and self.source.comes_before(node, first)
            is_above = is_above or (function is None and home is not None)
            if not is_above:
                return True
            if value is not None and _says_zero(value) and len(self._bound(path, self._owner(path, first))) == 1:
                return True  # gpu = 0: the same number before and behind
        return False

    def _bound(
        self, path: str, owner: Function | Class | None
    ) -> list[tuple[cst.BaseExpression | None, cst.BaseExpression]]:
        """What is bound to a name, where it is known, with the targets."""
        found: list[tuple[cst.BaseExpression | None, cst.BaseExpression]] = []
        for assign in self.source.nodes_of(cst.Assign):
            for each in assign.targets:
                target = each.target
                if isinstance(target, cst.Tuple | cst.List):
                    found += [(None, part.value) for part in target.elements if _path(part.value) == path]
                elif _path(target) == path:
                    found.append((assign.value, target))
        for annotated in self.source.nodes_of(cst.AnnAssign):
            if annotated.value is not None and _path(annotated.target) == path:
                found.append((annotated.value, annotated.target))
        for added in self.source.nodes_of(cst.AugAssign):
            if _path(added.target) == path:
                found.append((None, added.target))
        for loop in self.source.nodes_of(cst.For):
            if path in names_bound(loop.target) or _path(loop.target) == path:
                found.append((None, loop.target))
        return [(value, target) for value, target in found if self._owner(path, target) is owner]

    def _holds_several(self, path: str) -> bool:
        """``args.gpu.split(",")``, ``len(args.gpu)``, ``args.gpu[0]``, ``for gpu in args.gpu``"""
        if any(_path(node.value) == path for node in self.source.nodes_of(cst.Subscript)):
            return True
        if any(
            node.attr.value in ("split", "count") and _path(node.value) == path
            for node in self.source.nodes_of(cst.Attribute)
        ):
            return True
        for call in self.source.nodes_of(cst.Call):
            if dotted(call.func) in ("len", "list", "tuple", "map", "enumerate", "range") and any(
                _path(arg.value) == path for arg in call.args
            ):
                return True
        iterated = [loop.iter for loop in self.source.nodes_of(cst.For)]
        iterated += [loop.iter for loop in self.source.nodes_of(cst.CompFor)]
        if any(_path(each) == path for each in iterated):
            return True
        # if "," in args.gpu
        return any(
            isinstance(each.operator, cst.In | cst.NotIn) and _path(each.comparator) == path
            for comparison in self.source.nodes_of(cst.Comparison)
            for each in comparison.comparisons
        )

    # literals -----------------------------------------------------------------------------------

    def _literals(self) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
        """``torch.device("cuda:3")``, ``device = "cuda:3"``, ``device_ids=[2, 3]``"""
        for string in self.source.nodes_of(cst.SimpleString):
            if _NAMED.fullmatch(str(string.evaluated_value)) and self._is_for_device(string):
                yield string, string
        for arg in self.source.nodes_of(cst.Arg):
            if arg.keyword is not None and arg.keyword.value == "device_ids" and isinstance(arg.value, cst.List):
                for each in arg.value.elements[:0:-1]:
                    yield arg.value, each.value

    def _is_for_device(self, string: cst.SimpleString) -> bool:
        """Whether a name is one of a device that is used: no key of a `map_location`, no default, no choice."""
        above = self.parent(string)
        while isinstance(above, cst.IfExp):
            above = self.parent(above)
        if isinstance(above, cst.Assign):
            return "dev" in last_word(dotted(above.targets[0].target)).lower()
        call = self.parent(above) if isinstance(above, cst.Arg) else None
        if not isinstance(call, cst.Call) or not isinstance(above, cst.Arg):
            return False
        if above.keyword is not None:
            return above.keyword.value in ("device", "map_location") and last_word(dotted(call.func)) != "add_argument"
        is_method = isinstance(call.func, cst.Attribute) and call.func.attr.value in ("to", "cuda")
        return is_method or self.flow.scope.qualified(call.func) in ("torch.device", "torch.cuda.set_device")


@dataclass(frozen=True)
class Setting:
    """Where a variable is set, which one, and what it may be set to."""

    node: cst.CSTNode
    name: str
    values: list[cst.BaseExpression]

    @property
    def count(self) -> int:
        """How many devices are left visible; 0 where that is not known, or none is."""
        counts = set()
        for value in self.values:
            text = value.evaluated_value if isinstance(value, cst.SimpleString) else None
            # "-1" hides all devices, and "0,-1,1" all behind it
            known = isinstance(text, str) and _NUMBERS.fullmatch(text.replace(" ", "")) is not None
            counts.add(len(str(text).split(",")) if known else 0)
        return counts.pop() if len(counts) == 1 else 0


def _sides(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """``args.gpu if args.gpu >= 0 else ""``, ``args.gpu or "0"``"""
    for side in tree.sides(node):
        yield side.left if isinstance(side, cst.BooleanOperation) else side


def _plain(node: cst.BaseExpression) -> cst.BaseExpression:
    """``gpu`` of ``str(gpu)``, ``int(gpu)``, ``f"{gpu}"``, ``"%d" % gpu``, ``"{}".format(gpu)``."""
    inner: cst.BaseExpression | None = None
    if isinstance(node, cst.Call) and len(node.args) == 1 and node.args[0].keyword is None:
        is_format = isinstance(node.func, cst.Attribute) and node.func.attr.value == "format"
        if dotted(node.func) in ("str", "int", "repr") or (is_format and _is_place(node.func)):
            inner = node.args[0].value
    elif isinstance(node, cst.Call) and not node.args and isinstance(node.func, cst.Attribute):
        inner = node.func.value if node.func.attr.value == "strip" else None
    elif isinstance(node, cst.FormattedString) and len(node.parts) == 1:
        part = node.parts[0]
        inner = part.expression if isinstance(part, cst.FormattedStringExpression) else None
    elif isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Modulo) and _is_place(node.left):
        inner = node.right
        if isinstance(inner, cst.Tuple):
            inner = inner.elements[0].value if len(inner.elements) == 1 else None
    return node if inner is None else _plain(inner)


def _is_place(node: cst.BaseExpression) -> bool:
    """``"%d"``, and ``"{}".format``"""
    text = node.value if isinstance(node, cst.Attribute) else node
    return isinstance(text, cst.SimpleString) and text.evaluated_value in ("%d", "%s", "%i", "{}", "{0}", "{:d}")


def _is_name(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Name | cst.Attribute | cst.Subscript)


def _path(node: cst.CSTNode | None) -> str:
    """``args.gpu``, ``config["gpu"]``, ``gpus[0]``; empty for anything else."""
    if isinstance(node, cst.Subscript) and len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Index):
        key, path = node.slice[0].slice.value, _path(node.value)
        if not path or not isinstance(key, cst.SimpleString | cst.Integer):
            return ""
        return f"{path}[{key.evaluated_value!r}]"
    if isinstance(node, cst.Attribute) and isinstance(node.value, cst.Subscript):
        path = _path(node.value)
        return f"{path}.{node.attr.value}" if path else ""
    return dotted(node) if isinstance(node, cst.Name | cst.Attribute) else ""


def _index(node: cst.BaseExpression) -> int | None:
    """``3`` of ``3`` and of ``"cuda:3"``."""
    if isinstance(node, cst.Integer):
        return node.evaluated_value
    text = node.evaluated_value if isinstance(node, cst.SimpleString) else None
    named = _NAMED.fullmatch(text) if isinstance(text, str) else None
    return int(named[1]) if named is not None else None


def _says_zero(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.SimpleString | cst.Integer) and str(node.evaluated_value) == "0"


_VARIABLES = frozenset({"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"})
_NAMED = re.compile(r"cuda:(\d+)")
_NUMBERS = re.compile(r"\d+(,\d+)*")
