from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property, cmp_to_key
from typing import NamedTuple

import libcst as cst

from devlint import tree
from devlint.flow.hypothesis import LOADER_NAME, LOSS_NAME, MODEL_NAME, asks_for_device
from devlint.flow.names import called_name, dotted, innermost_call, last_word, names_bound
from devlint.flow.scope import Class, Function
from devlint.flow.value import DATA, LOADER, MODULE
from devlint.rule import Rule
from devlint.rules._beside_answer import TAKES_ANYTHING, left_out_of_rows, unmoved_beside_answers
from devlint.rules._moves import short
from devlint.rules._training import is_inside

#: Names of what is a tensor in a batch, and is not read on the host as lengths, names and numbers of rows are.
_TENSOR_NAME = re.compile(
    r"(^|_)(ids|masks?|labels?|targets?|inputs?|images?|imgs?|boxes|edge_index|edge_weight|edge_attr|adj|attn|values?|"
    r"rewards?|actions?|states?|obs|x|y|x_\d|y_\d|data|batch|features?|feats?)$"
)
_MOVER = re.compile(r"(^|_)(to|move|put|send|place)_.*(device|cuda|gpu)|^to_(device|cuda|gpu)|^(cuda|todevice)$", re.I)
_SAYS_DEVICE = re.compile(r"device|cuda|gpu|\bnpu\b|\bmps\b|accelerat|fabric", re.I)
#: Methods of a model that it is not asked by: ``model.load_state_dict(state)``.
_NOT_ASKED = re.compile(r"^(load|save|to|cuda|cpu|train|eval|set|register|add|parameters|named|state|apply|zero|from)")

Key = str


class Binding(NamedTuple):
    """What a function binds a name to; ``source``: ``loader``, or what is called for it."""

    node: cst.CSTNode
    value: cst.BaseExpression
    source: str
    moves: bool


class Asked(NamedTuple):
    """A model is called with something of which the function says where it comes from."""

    call: cst.Call
    binding: Binding
    moved: bool


class LeftUnmoved(Rule):
    """What goes with it is moved to the device, or its twin is, and this is not.

    ## What it does
    Reports a part of what a loader or a call gives that is handed, as it is, to the call that the other parts are moved
    for; what a function hands to a model unmoved, where another function of the class or file moves what comes from the
    same place before it asks the same model; and what one branch fetches without a move, for the name that the other
    branch moves. And what is moved for one call, and then meets, as it is, what that gave (`y = model(x.to(device))`,
    `loss(y, x)`), and the one of a row of arguments that are made alike that is not moved.

    ## Why is this bad
    Loaders, samplers, and tokenizers give tensors on the host. Whoever moves one part, or moves it in one method, knows
    so; the part that is left raises `Expected all tensors to be on the same device` in the model.

    ## Example
    ```python
    from torch import nn


    class Trainer:
        def __init__(self, model: nn.Module, sampler, device):
            self.model, self.sampler, self.device = model.to(device), sampler, device

        def train_step(self):
            rows = self.sampler.draw("train").to(self.device)
            self.model(rows).sum().backward()

        def test_step(self):
            rows = self.sampler.draw("test")
            return self.model(rows).sum()
    ```

    ## Use instead
    ```python
    from torch import nn


    class Trainer:
        def __init__(self, model: nn.Module, sampler, device):
            self.model, self.sampler, self.device = model.to(device), sampler, device

        def train_step(self):
            rows = self.sampler.draw("train").to(self.device)
            self.model(rows).sum().backward()

        def test_step(self):
            rows = self.sampler.draw("test").to(self.device)
            return self.model(rows).sum()
    ```

    ## Fix safety
    There is no fix: where it is best moved hangs on what else is done with it.

    ## Limits
    Silent in files that leave moves to accelerate or DataParallel, where the model of the file moves anything itself,
    and where anything in the function may have moved the value. Parts are told from lengths, names, and paths by their
    names. A loader that moves its batches ahead (a prefetcher), handed to one of the twins, is not told from others.
    Tentative throughout: a likeness shows what was meant, not where a value is. New: nine faults that projects have
    mended since; in some 120 repositories that are kept well it found nothing that was true, and in 45 others four
    findings, all false.

    ## References
    - [torch.nn.Module.to](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.to)
    - [Tensor.to](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.to.html)
    """

    group = "nursery"
    assumes_host_default = True
    raises = True

    def check(self) -> None:
        text = self.source.text
        if not any(word in text for word in (".to(", ".cuda(", "to_device(")) or self.flow.scope.wraps_models:
            return
        asked: dict[tuple[Class | None, str], list[Asked]] = defaultdict(list)
        for call in self.source.nodes_of(cst.Call):
            if len(call.args) > 1:
                self._parts(call)
            model = self._model(call)
            if model:
                function = self.flow.function(call)
                cls = function.cls if function is not None else None
                if self._of(function, model.partition(".")[0]):
                    continue  # model = build(); model(rows)   is no other function's model
                asked[cls, model].extend(self._asked(call))
        for group in asked.values():
            self._twins(group)
        for node in self.source.nodes_of(cst.If):
            self._branches(node)
        self._entries()
        self._beside()

    # parts of one batch -------------------------------------------------------------------------

    def _parts(self, call: cst.Call) -> None:
        """``x, edges = split(graph)``, ``x = x.to(device)``, ``model(x, edges)``."""
        name = called_name(call)
        if name in TAKES_ANYTHING:
            return
        groups: dict[object, tuple[list[cst.BaseExpression], list[cst.BaseExpression]]] = defaultdict(lambda: ([], []))
        for arg in call.args:
            held, is_moved = self._part(arg.value)
            if held is not None and not arg.star:
                groups[held][0 if is_moved else 1].append(arg.value)
        for moved, left in groups.values():
            is_for_model = bool(self._model(call)) or LOSS_NAME.search(name) is not None
            if not left or len(left) > len(moved) or len(moved) < (1 if is_for_model else 2):
                continue
            if self._moves_itself(call):
                return
            for node in left:
                if _TENSOR_NAME.search(_name_of_part(node)):
                    beside = short(self.code(moved[0]))
                    self._say(node, f"`{short(self.code(node))}` is not moved, and `{beside}` beside it is", moved[0])

    def _part(self, node: cst.BaseExpression) -> tuple[object | None, bool]:
        """What an argument is a part of, a tuple or what a tokenizer gave, and whether it is moved."""
        is_put = isinstance(node, cst.Call) and _is_move(self, node)
        if is_put and isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            node = node.func.value
        whole = _whole(node)
        if whole:  # encoded["input_ids"].to(device), encoded["attention_mask"]
            function = self.flow.function(node)
            bound = self._of(function, whole) if "." not in whole else []
            if not bound or any(each.moves for each in bound) or whole in self._put[function]:
                return None, False
            is_there = self.flow.value(node).place.is_there
            return whole, is_put or is_there or self.code(node) in self._put[function]
        if not isinstance(node, cst.Name):
            return None, False
        function = self.flow.function(node)
        bindings = self._since_bound_anew(function, node)
        if not bindings:
            return None, False
        first = bindings[0]
        is_moved = is_put or any(each.moves for each in bindings)
        for move in self._touched[function].get(node.value, ()):
            is_moved |= self.source.comes_before(first.node, move) and self.source.comes_before(move, node)
        if not is_moved and (len(bindings) > 1 or self.flow.value(node).place.is_there):
            return None, False
        if isinstance(first.node, cst.For):
            is_apart = isinstance(first.node.target, cst.Tuple | cst.List) and first.source == "loader"
            return (first.node, is_moved) if is_apart else (None, False)
        if isinstance(first.node, cst.Assign) and isinstance(first.node.targets[0].target, cst.Tuple):
            return (first.node, is_moved) if not first.moves and isinstance(first.value, cst.Call) else (None, False)
        if first.source.startswith("torch.") and not first.moves:
            return first.source, is_moved  # values = torch.stack(a); rewards = torch.stack(b)
        return None, False

    def _since_bound_anew(self, function: Function | None, name: cst.Name) -> list[Binding]:
        """The bindings above a use, from the last one that is not made of what the name was bound to."""
        found: list[Binding] = []
        for each in self._of(function, name.value):
            if self.source.comes_before(each.node, name):
                found = [*found, each] if name.value in _keys(each.value) else [each]
        return found

    def _moves_itself(self, call: cst.Call) -> bool:
        """Whether what is called may move what it is handed: a function or a module of the file that moves anything."""
        ref = self.flow.value(call.func).ref
        if isinstance(ref, Class):
            return any(method.moves_something for cls in ref.lineage for method in cls.methods.values())
        return called_name(call) in self._movers

    def _beside(self) -> None:
        for read, move in unmoved_beside_answers(self, lambda call: _is_move(self, call)):
            above = self.parent(self.parent(read) or read)
            if not (isinstance(above, cst.Call) and self._moves_itself(above)) and not self._is_moved_below(read, move):
                self._say(read, f"`{read.value}` meets what the call gave that it was moved for, and stays", move)
        for made, move in left_out_of_rows(self, lambda call: _is_move(self, call)):
            self._say(made, f"`{short(self.code(made))}` is not moved, and the others beside it are", move)

    def _is_moved_below(self, read: cst.Name, move: cst.Call) -> bool:
        """Whether the name is moved for good in between: ``x = x.to(device)``"""
        bound = self._of(self.flow.function(read), read.value)
        return any(
            each.moves and self.source.comes_before(move, each.node) and self.source.comes_before(each.node, read)
            for each in bound
        )

    # twins --------------------------------------------------------------------------------------

    def _asked(self, call: cst.Call) -> Iterator[Asked]:
        """What a model is asked: ``self.model(batch)``, ``self.model.loss(self.data)``, ``net(as_tensor(rows))``."""
        if self._moves_itself(call):
            return
        function = self.flow.function(call)
        node = call.args[0].value
        is_put = isinstance(node, cst.Call) and _is_move(self, node)
        if is_put and isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            node = node.func.value  # self.model(batch.to(self.device))
        while isinstance(node, cst.Subscript):
            node = node.value
        if isinstance(node, cst.Call):
            moved = is_put or self._says_device(node)
            yield Asked(call, Binding(node, node, self._source(node), moved), moved)
            return
        key = dotted(node)
        bindings = [each for each in self._of(function, key) if self.source.comes_before(each.node, call)]
        if bindings:
            moved = is_put or self._is_moved(function, key) or self.flow.value(node).place.is_there
            # for batch in loader: ids = batch["ids"]
            moved |= any(self._is_moved(function, name) for name in _keys(bindings[0].value) if name != key)
            yield Asked(call, bindings[0], moved)

    def _twins(self, group: list[Asked]) -> None:
        seen: set[cst.CSTNode] = set()
        for asked in group:
            function = self.flow.function(asked.call)
            if asked.moved or asked.binding.node in seen or not self._is_of_host(asked.binding):
                continue
            for twin in group:
                other = self.flow.function(twin.call)
                if not twin.moved or other is function or twin.binding.source != asked.binding.source:
                    continue
                seen.add(asked.binding.node)
                what = short(self.code(asked.call.args[0].value))
                where = other.name if other is not None else "the file"
                is_assigned = isinstance(asked.binding.node, cst.Assign)
                self._say(
                    asked.binding.node if is_assigned else asked.call,
                    f"`{what}` comes to `{short(self.code(asked.call.func))}` unmoved, and `{where}` moves its own",
                    twin.call,
                )
                break

    def _is_of_host(self, binding: Binding) -> bool:
        """Whether what is called for a value may leave it on the host."""
        source = binding.source
        if source.startswith("torch.") and self.flow.factory(innermost_call(binding.value)) is None:
            return False  # rows = torch.stack(found): wherever those are
        if any(MODEL_NAME.match(word) for word in source.split(".")):
            return False  # h = self.encoder(x)
        return bool(source) and not self._is_maker_of_place(source)

    def _is_maker_of_place(self, source: str) -> bool:
        """``batch = self.next_batch()``: a function of the file that moves what it gives."""
        return last_word(source) in self._movers

    @cached_property
    def _movers(self) -> frozenset[str]:
        """The names of the file's functions and methods that move anything."""
        return frozenset(each.name for each in self.flow.scope.functions.values() if each.moves_something)

    def _entries(self) -> None:
        """``batch["image"].to(self.device)`` in one method, and ``batch["image"]`` in another that is handed one."""
        moved: dict[tuple[Class, str], cst.CSTNode] = {}
        left: dict[tuple[Class, str, Function], tuple[cst.Subscript, set[str]]] = {}
        for node in self.source.nodes_of(cst.Subscript):
            function = self.flow.function(node)
            if function is None or function.cls is None or not _string(node) or not isinstance(node.value, cst.Name):
                continue
            if node.value.value not in function.param_names - function.assigned:
                continue
            code, above = self.code(node).replace("'", '"'), self.parent(node)
            if isinstance(above, cst.Attribute) and isinstance(self.parent(above), cst.Call):
                if above.attr.value == "to" and self.code(node) in self._put[function]:
                    moved.setdefault((function.cls, code), node)
            elif isinstance(above, cst.Assign) and not function.moves_something:
                names = names_bound(*(each.target for each in above.targets))
                left.setdefault((function.cls, code, function), (node, names))
        for (cls, code, function), (node, names) in left.items():
            told = moved.get((cls, code))
            is_met = any(dotted(arg.value) in names for call in self._calls[function] for arg in call.args)
            if told is not None and is_met and _TENSOR_NAME.search(_string(node)):
                other = self.flow.function(told)
                where = other.name if other is not None else ""
                self._say(node, f"`{short(code)}` is used as it is, and `{where}` moves its own", told)

    # branches -----------------------------------------------------------------------------------

    def _branches(self, node: cst.If) -> None:
        """``if mixed: x, y = self.mixed()`` and ``else: x = batch[0].to(device)``, above ``model(x)``."""
        if not isinstance(node.orelse, cst.Else):
            return
        function = self.flow.function(node)
        one, two = list(_assigned(node.body)), list(_assigned(node.orelse.body))
        for here, there in ((one, two), (two, one)):
            told = {name: assign for assign, names in here for name in names if _ends_in_move(self, assign.value)}
            if not told or asks_for_device(self.code(node.test).lower()):
                continue
            for assign, names in there:
                if not isinstance(assign.value, cst.Call) or self._says_device(assign.value):
                    continue
                if self.flow.move(assign.value) is not None:
                    continue  # x = x.cpu()
                if self._is_maker_of_place(dotted(assign.value.func)) or self.flow.value(assign.value).kind == DATA:
                    continue
                if self.flow.factory(assign.value) is not None:
                    continue  # device-left-out speaks of these
                if any(self._may_be_there(arg.value) for arg in assign.value.args):
                    continue  # x = self.mix(x)   is where that is
                for name in sorted(names & told.keys()):
                    if sum(name in bound for _, bound in there) > 1 or self._is_put_outside(function, name, node):
                        continue
                    if self._is_asked_below(function, name, node):
                        self._say(assign, f"`{name}` is not moved here, and the other branch moves it", told[name])

    def _may_be_there(self, node: cst.BaseExpression) -> bool:
        place = self.flow.value(node).place
        return place.is_there or place.kind == "param" or place.name == "self"

    def _is_put_outside(self, function: Function | None, name: str, node: cst.If) -> bool:
        """``x = x.to(device)`` below both branches."""
        return any(
            _is_move(self, call) and name in _keys(call) and not is_inside(self.flow, call, node)
            for call in self._calls[function]
        )

    def _is_asked_below(self, function: Function | None, name: str, node: cst.If) -> bool:
        return any(
            bool(self._model(call)) and any(dotted(arg.value) == name for arg in call.args)
            for call in self._calls[function]
            if self.source.comes_before(node, call) and not is_inside(self.flow, call, node)
        )

    # what a function says of a name -------------------------------------------------------------

    @cached_property
    def _calls(self) -> dict[Function | None, list[cst.Call]]:
        found: dict[Function | None, list[cst.Call]] = defaultdict(list)
        for call in self.source.nodes_of(cst.Call):
            found[self.flow.function(call)].append(call)
        return found

    @cached_property
    def _bindings(self) -> dict[Function | None, dict[Key, list[Binding]]]:
        found: dict[Function | None, dict[Key, list[Binding]]] = defaultdict(lambda: defaultdict(list))
        nodes: list[cst.Assign | cst.For] = [*self.source.nodes_of(cst.Assign), *self.source.nodes_of(cst.For)]
        for node in nodes:
            if isinstance(node, cst.For):
                target, value, source = node.target, node.iter, "loader" if self._is_loader(node.iter) else ""
            else:
                target, value = node.targets[0].target, node.value
                source = self._source(value)
            binding = Binding(node, value, source, self._says_device(value))
            for key in names_bound(target) | ({dotted(target)} - {""}):
                found[self.flow.function(node)][key].append(binding)
        for keys in found.values():
            for bindings in keys.values():
                bindings.sort(key=cmp_to_key(self._in_order))
        return found

    def _in_order(self, one: Binding, other: Binding) -> int:
        return -1 if self.source.comes_before(one.node, other.node) else 1

    def _source(self, value: cst.BaseExpression) -> str:
        """What is called: `self.sampler.draw`, `torch.tensor`, `rows.util.as_rows`; empty for what is no call."""
        made = innermost_call(value)  # self.sampler.draw(8).float().to(device)
        return self.flow.name_of(made) or dotted(made.func) if isinstance(made, cst.Call) else ""

    def _of(self, function: Function | None, key: Key) -> list[Binding]:
        return self._bindings[function].get(key, []) if key and function in self._bindings else []

    @cached_property
    def _put(self) -> dict[Function | None, set[str]]:
        """The code of what each function moves, and of what it goes through to do so."""
        found: dict[Function | None, set[Key]] = defaultdict(set)
        for call in self._moves:
            put = found[self.flow.function(call)]
            if isinstance(call.func, cst.Attribute):
                put.add(self.code(call.func.value))
            put |= {self.code(arg.value) for arg in call.args} | self._gone_through(call)
        return found

    @cached_property
    def _touched(self) -> dict[Function | None, dict[Key, list[cst.Call]]]:
        """The names of what each function moves, wholly or in part, and the moves."""
        found: dict[Function | None, dict[Key, list[cst.Call]]] = defaultdict(lambda: defaultdict(list))
        for call in self._moves:
            for key in _keys(call) | self._gone_through(call):
                found[self.flow.function(call)][key].append(call)
        return found

    @cached_property
    def _moves(self) -> list[cst.Call]:
        return [call for call in self.source.nodes_of(cst.Call) if _is_move(self, call)]

    def _gone_through(self, move: cst.Call) -> set[Key]:
        found: set[Key] = set()
        above = self.parent(move)
        while above is not None and not isinstance(above, cst.FunctionDef | cst.Module):
            if isinstance(above, cst.For):
                found |= _keys(above.iter)  # for k, v in batch.items(): batch[k] = v.to(device)
            elif isinstance(above, cst.BaseComp):
                found |= _keys(above)  # {k: v.to(device) for k, v in batch.items()}
            elif isinstance(above, cst.Call) and self.enclosing(move, cst.Lambda) is not None:
                found |= _keys(above)  # data.apply(lambda x: x.to(device))
            above = self.parent(above)
        return found

    def _is_moved(self, function: Function | None, key: Key) -> bool:
        return key in self._touched[function] or any(each.moves for each in self._of(function, key))

    def _says_device(self, value: cst.BaseExpression) -> bool:
        return _SAYS_DEVICE.search(tree.words(value)) is not None or any(
            isinstance(part, cst.Call) and _is_move(self, part) for part in tree.walk(value)
        )

    def _is_loader(self, node: cst.BaseExpression) -> bool:
        """``loader``, ``tqdm(self.train_loader)``, ``enumerate(loader)``"""
        while isinstance(node, cst.Call) and node.args and not LOADER_NAME.search(last_word(dotted(node.func))):
            node = node.args[0].value
        return self.flow.value(node).kind == LOADER or LOADER_NAME.search(last_word(dotted(node))) is not None

    def _model(self, call: cst.Call) -> str:
        """``self.model`` of ``self.model(x)`` and of ``self.model.loss(x)``; empty where no model is asked."""
        path = dotted(call.func)
        if not path or not call.args:
            return ""
        holder, _, method = path.rpartition(".")
        is_asked = MODEL_NAME.match(last_word(holder)) and not _NOT_ASKED.match(method)
        if not is_asked and self.flow.value(call.func).kind != MODULE and not MODEL_NAME.match(method or path):
            return ""
        parts = path.split(".")
        named = [n for n, part in enumerate(parts) if MODEL_NAME.match(part)]
        return ".".join(parts[: named[0] + 1]) if named else path  # model of model.encoder(x)

    def _say(self, node: cst.CSTNode, message: str, beside: cst.CSTNode) -> None:
        self.report(node, message, notes=[self.note(beside, "this one is moved")], tentative=True)


def _is_move(rule: Rule, call: cst.Call) -> bool:
    """``x.to(device)``, ``x.cuda()``, ``to_device(x, device)``"""
    name = called_name(call)
    if isinstance(call.func, cst.Attribute) and name in ("to", "cuda"):
        move = rule.flow.move(call)
        if move is not None:
            return not move.target.is_host
        # not x.to(dtype=torch.half), x.to(other)
        return name == "cuda" or any(_SAYS_DEVICE.search(tree.words(arg)) for arg in call.args)
    return _MOVER.search(name) is not None


def _ends_in_move(rule: Rule, node: cst.BaseExpression) -> bool:
    """``batch[0].to(device)``, ``to_device(batch)``"""
    return isinstance(node, cst.Call) and _is_move(rule, node)


def _keys(node: cst.CSTNode) -> set[Key]:
    """The names in an expression, and the attributes: ``self.data``, ``batch``."""
    found: set[Key] = set()
    for part in tree.walk(node):
        if isinstance(part, cst.Name | cst.Attribute):
            found.add(dotted(part))
    return found - {"", "self"}


def _whole(node: cst.BaseExpression) -> str:
    """``encoded`` of ``encoded["ids"]``, of ``encoded.ids``, and of ``encoded.get("ids")``."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "get":
        return dotted(node.func.value)
    if isinstance(node, cst.Subscript) and _string(node):
        return dotted(node.value)
    return dotted(node.value) if isinstance(node, cst.Attribute) and dotted(node.value) != "self" else ""


def _string(node: cst.Subscript) -> str:
    index = node.slice[0].slice
    value = index.value if isinstance(index, cst.Index) else None
    return str(value.evaluated_value) if isinstance(value, cst.SimpleString) else ""


def _name_of_part(node: cst.BaseExpression) -> str:
    if isinstance(node, cst.Subscript):
        return _string(node)
    if isinstance(node, cst.Call) and node.args and isinstance(node.args[0].value, cst.SimpleString):
        return str(node.args[0].value.evaluated_value)
    return last_word(dotted(node))


def _assigned(block: cst.BaseSuite) -> Iterator[tuple[cst.Assign, set[str]]]:
    for line in block.body:
        for small in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(small, cst.Assign):
                yield small, names_bound(*(each.target for each in small.targets))
