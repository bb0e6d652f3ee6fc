"""Whether anything misses a move whose result is dropped: what goes on with what was not moved."""

from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.facts import Move
from devlint.flow.hypothesis import MODEL_NAME, names_device
from devlint.flow.modules import MOVES_ITS_INPUTS
from devlint.flow.names import called_name, dotted, last_word, names_bound
from devlint.flow.place import DIFFERENT, SAME, relation
from devlint.flow.scope import CONSTRUCTOR, Function
from devlint.flow.value import MODULE, UNKNOWN
from devlint.rule import Rule
from devlint.rules._arguments import handed_in
from devlint.rules._copied import is_copied
from devlint.rules._meetings import calls_that_run
from devlint.rules._plain import OF_SIZES
from devlint.rules._tensor_use import takes_tensors_alone

#: Names of what the host reads.
LENGTHS = re.compile(r"(^|_)(lens?|lengths?)$")


class Misses:
    """The reads of what was not moved, as a rule sees them."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    def is_missed(self, call: cst.Call, receiver: cst.BaseExpression, move: Move | None) -> bool:
        """Whether something surely goes on with what was not moved, which is elsewhere."""
        there = move is not None and move.target.is_there and move.value.place.is_there
        if move is not None and there and relation(move.value.place, move.target) != DIFFERENT:
            return False  # self.register_buffer("table", table); self.table.to(x.device)   follows the module anyway
        if move is not None and move.value.place.is_there and move.target.kind == "param":
            return False  # y = self.conv(x); y.to(x.device)   is where its input is
        function = self.rule.flow.function(call)
        of_module = move is not None and move.value.ref in ("parameter", "buffer")
        if of_module and function is not None and function.role == CONSTRUCTOR and dotted(receiver).startswith("self."):
            return False  # self.bias = nn.Parameter(bias); self.bias.to(device)   who builds it moves it as a whole
        if LENGTHS.search(self.rule.code(receiver)):
            return False  # lengths.to(device); pack_padded_sequence(x, lengths)   wants them on the host
        if is_copied(self.rule, call) and not self._is_made_here(call, move):
            return False
        reads = self.other_reads(call, receiver)
        reads = [read for read in reads if not (self._is_ignored(read) or self._is_scattered(read))]
        if any(self._is_of_ctc(read) for read in reads):
            return False
        elsewhere = self._is_elsewhere(call, move)
        meets_there = any(self._meets_there(read) or (elsewhere and self._is_refused(read, move)) for read in reads)
        if not meets_there and not self._is_for_that_alone(call):
            return False
        if reads and (self._is_set_by_variable(reads[0]) or self._feeds_unmoved(reads[0])):
            return False
        if reads and (all(self._is_put_away(read) for read in reads) or self._gives_numbers(move, reads)):
            return False
        if isinstance(receiver, cst.Name) and self._is_read_on_host(call, receiver, function):
            return False
        if isinstance(receiver, cst.Name):
            if not meets_there and any(self._meets_host(read) for read in reads):
                return False  # y.cuda(); loss = F.mse_loss(torch.tensor(rows), y)   goes well on the host
            return bool(reads) and not self._is_moved(reads[0])  # x.to(device); x = x.to(device)
        # self.bias.to(self.device), and in another method: self.bias = self.bias.to(self.device)
        # self.rate.to(device), and in another method: torch.ones(n) * self.rate
        # self.norms.to(device), and in another method: self.norms = norms.cpu()
        origin = move.value.origin if move is not None else None
        brought = self.rule.flow.facts.moves.get(origin) if origin is not None else None
        if brought is not None and brought.target.is_host:
            return False
        return bool(reads) and not any(self._is_moved(read) or self._meets_host(read) for read in reads)

    def _is_read_on_host(self, call: cst.Call, receiver: cst.Name, function: Function | None) -> bool:
        """``x.to(device); rows.append(x)`` ... ``torch.cat(rows).numpy()``: which only works where it is now."""
        made_of = {receiver.value}
        for node in tree.walk(function.node.body) if function is not None else ():
            if not isinstance(node, cst.Assign | cst.Call) or not self.rule.source.comes_before(call, node):
                continue
            names = {part.value for part in tree.walk(node) if isinstance(part, cst.Name)}
            if not names & made_of:
                continue
            if isinstance(node, cst.Assign):
                made_of |= names_bound(*(target.target for target in node.targets))
            elif isinstance(node.func, cst.Attribute):
                if node.func.attr.value == "append":
                    made_of |= names_bound(node.func.value)
                elif node.func.attr.value == "numpy" and ".cpu" not in self.rule.code(node):
                    return self.rule.flow.value(node.func.value).place.is_host
        return False

    def _is_made_here(self, call: cst.Call, move: Move | None) -> bool:
        """``found = torch.zeros(3); found.to(device)``: that stays on the host, whoever wrote it first."""
        made = _made_on_host(move)
        if made is None or self.rule.flow.function(made) is not self.rule.flow.function(call):
            return False
        return self.rule.flow.factory(made) is not None

    def call_of(self, read: cst.BaseExpression) -> cst.Call | None:
        """The call that something is an argument of."""
        arg = self.rule.parent(read)
        call = self.rule.parent(arg) if isinstance(arg, cst.Arg) else None
        return call if isinstance(call, cst.Call) else None

    def _is_scattered(self, read: cst.BaseExpression) -> bool:
        """``net = nn.DataParallel(net); x.cuda(); net(x)``: that puts what it is handed on its devices."""
        call = self.call_of(read)
        return call is not None and self.rule.flow.value(call.func).text == MOVES_ITS_INPUTS

    def _is_ignored(self, read: cst.BaseExpression) -> bool:
        """``rows.to(device); turn(q, rows)``, where ``def turn(q, rows=None): return -q`` reads no rows."""
        arg, call = self.rule.parent(read), self.call_of(read)
        called = self.rule.flow.scope.function_names.get(dotted(call.func)) if call is not None else None
        if call is None or called is None or not isinstance(arg, cst.Arg) or any(each.star for each in call.args):
            return False
        at = next(i for i, each in enumerate(call.args) if each is arg)
        names = [param.name.value for param in called.params]
        name = arg.keyword.value if arg.keyword is not None else names[at] if at < len(names) else ""
        return name in names and not tree.named(called.node.body, name)

    def _is_of_ctc(self, read: cst.BaseExpression) -> bool:
        """``F.ctc_loss(scores, labels, ...)`` takes its targets from the host, too."""
        call = self.call_of(read)
        return call is not None and called_name(call) == "ctc_loss"

    def _is_put_away(self, read: cst.BaseExpression) -> bool:
        """``index.to(device); batch.extras["index"] = index``: who takes it from there may move it, or want it so."""
        assign = self.rule.parent(read)
        return isinstance(assign, cst.Assign) and all(
            isinstance(each.target, cst.Attribute | cst.Subscript) for each in assign.targets
        )

    def _gives_numbers(self, move: Move | None, reads: list[cst.Name | cst.Attribute]) -> bool:
        """``rates = torch.ones(n); rates.to(device); ... rates[i] * x``: single numbers may meet anything."""
        made = _made_on_host(move)
        if made is None or self.rule.flow.name_of(made) not in OF_SIZES - {"torch.eye"}:  # that has rows
            return False
        sizes = [arg for arg in made.args if arg.keyword is None]
        return (
            len(sizes) == 1
            and not isinstance(sizes[0].value, cst.Tuple | cst.List)
            and all(map(self._is_number, reads))
        )

    def _is_number(self, read: cst.BaseExpression) -> bool:
        """``rates[i]``"""
        item = self.rule.parent(read)
        if not isinstance(item, cst.Subscript) or len(item.slice) != 1:
            return False
        index = item.slice[0].slice
        return isinstance(index, cst.Index) and not self.rule.flow.value(index.value).is_tensor

    def _is_set_by_variable(self, read: cst.BaseExpression) -> bool:
        """``for name in dir(one): ...; setattr(self, name, x)``: which of them is a tensor, and read, nobody knows."""
        call = self.call_of(read)
        if call is None or dotted(call.func) != "setattr" or len(call.args) != 3:
            return False
        return not isinstance(call.args[1].value, cst.SimpleString)

    def _feeds_unmoved(self, read: cst.BaseExpression) -> bool:
        """``x.to(device); self.net(x)``, of an object that never moves its net: that may be on the host as well."""
        call = self.call_of(read)
        path = dotted(call.func) if call is not None else ""
        if call is None or self.rule.flow.value(call.func).place.is_there or takes_tensors_alone(self.rule, call):
            return False
        function = self.rule.flow.function(call)
        if isinstance(call.func, cst.Name) and function is not None:
            return self._is_built_here(function, path)
        if (
            not path.startswith("self.")
            or function is None
            or function.cls is None
            or function.cls.is_module
            or not MODEL_NAME.search(last_word(path))
        ):
            return False
        moved = _moves_of(path)
        return not any(
            moved.search(self.rule.code(each.node)) for each in function.cls.lineage if each.home is self.rule.flow
        )

    def _is_built_here(self, function: Function, name: str) -> bool:
        """``layer = Layer(4); x.to(device); layer(x)``, of a layer that the function builds and never moves."""
        built = [
            node.value
            for node in tree.walk(function.node.body)
            if isinstance(node, cst.Assign) and name in names_bound(*(target.target for target in node.targets))
        ]
        made = len(built) == 1 and isinstance(built[0], cst.Call) and last_word(dotted(built[0].func))[:1].isupper()
        return made and _moves_of(name).search(self.rule.code(function.node)) is None

    def _is_elsewhere(self, call: cst.Call, move: Move | None) -> bool:
        """Whether it is known not to be there; else callers, or what it is made of, may have put it there."""
        of_caller = move is not None and not move.value.place.is_host and isinstance(move.value.origin, cst.Param)
        if move is None or (move.value.place.is_known and not of_caller):
            return True
        function = self.rule.flow.function(call)
        if function is None or not isinstance(receiver := move.receiver, cst.Name):
            return False
        handed = [handed_in(each, function, receiver.value) for each in calls_that_run(self.rule, function)]
        # def step(net, x, device): x.to(device)   and  step(net, torch.zeros(3), device)
        return bool(handed) and all(arg is not None and self.rule.flow.value(arg).place.is_host for arg in handed)

    def _is_for_that_alone(self, call: cst.Call) -> bool:
        """``def to(self, device): self.rows.to(device)``; what a ``cpu`` brings back may never have left."""
        function = self.rule.flow.function(call)
        return function is not None and function.cls is not None and function.name in table.MOVES - {"cpu"}

    def _is_refused(self, read: cst.BaseExpression, move: Move | None) -> bool:
        """Whether what is elsewhere comes to what wants it there."""
        return self._goes_into_model(read) or self._meets_same(read, move) or self._reads_array(read, move)

    def _goes_into_model(self, read: cst.BaseExpression) -> bool:
        """``x.to(device); model(x.float())``, ``y.cuda(); criterion(out, y)``: of a model that is there."""
        call = self.call_of(self._made_of(read))
        if call is None or self._may_be_scattered():
            return False
        module = self.rule.flow.value(call.func)
        if isinstance(call.func, cst.Attribute) and self.rule.flow.value(call.func.value).kind == MODULE:
            module = self.rule.flow.value(call.func.value)  # net.generate(ids)
        return module.place.is_there  # of one that is handed in, a wrapper may bring it there

    def _made_of(self, read: cst.BaseExpression) -> cst.BaseExpression:
        """``x.view(-1).float()`` of ``x``, ``boxes.corners`` of ``boxes``, ``batch["mask"][0]`` of ``batch``."""
        node = read
        while True:
            above = self.rule.parent(node)
            taken = isinstance(above, cst.Attribute | cst.Subscript) and above.value is node
            if not taken and not (isinstance(above, cst.Call) and above.func is node):
                return node
            node = above  # type: ignore[assignment]

    def _reads_array(self, read: cst.BaseExpression, move: Move | None) -> bool:
        """``scores.cpu(); scores.numpy()``"""
        func = self.rule.parent(read)
        return (
            move is not None
            and move.target.is_host
            and move.value.place.is_there
            and isinstance(func, cst.Attribute)
            and func.attr.value == "numpy"
        )

    def _meets_same(self, read: cst.BaseExpression, move: Move | None) -> bool:
        """``rows.to(x.device); x * rows``"""
        values = map(self.rule.flow.value, self._beside(self._made_of(read)))
        return move is not None and any(v.holds_tensors and relation(v.place, move.target) == SAME for v in values)

    def _meets_there(self, read: cst.BaseExpression) -> bool:
        """``net.to(device); x.to(device); net(x)``: it meets what is there as it is, or is given back as moved."""
        if isinstance(self.rule.parent(read), cst.Return):
            return self._is_handed_in(read)  # def put(x, device): x.to(device); return x
        handed_in, node = self._is_handed_in(read), self._made_of(read)
        others = (each for each in self._beside(node) if not (handed_in and self._is_kept_state(each)))
        if any(value.holds_tensors and value.place.is_there for value in map(self.rule.flow.value, others)):
            return True
        call = self.call_of(read)
        module = self.rule.flow.value(call.func) if call is not None else UNKNOWN
        return module.kind == MODULE and module.place.is_there and not self._may_be_scattered()

    def _may_be_scattered(self) -> bool:
        """``run(nn.DataParallel(net).cuda(), x)``: what is called may put what it is handed on its devices."""
        return "DataParallel(" in self.rule.source.text

    def _beside(self, node: cst.BaseExpression) -> list[cst.BaseExpression]:
        """What has to be where this is: ``y`` of ``x + y``, ``x == y``, ``F.mse_loss(x, y)``."""
        parent, call = self.rule.parent(node), self.call_of(node)
        if isinstance(parent, cst.BinaryOperation):
            return [parent.left if node is parent.right else parent.right]
        if isinstance(parent, cst.Comparison):
            return [target.comparator for target in parent.comparisons]
        if isinstance(parent, cst.ComparisonTarget) and isinstance(whole := self.rule.parent(parent), cst.Comparison):
            return [whole.left]
        if call is not None and takes_tensors_alone(self.rule, call):
            return [arg.value for arg in call.args if arg is not parent]
        return []

    def _is_kept_state(self, node: cst.BaseExpression) -> bool:
        """``(y - self.mean) / self.std``: whoever calls a method hands it what may meet what its object keeps."""
        paths = (dotted(part) for part in tree.walk(node) if isinstance(part, cst.Attribute))
        return any(path.startswith("self.") and not names_device(last_word(path)) for path in paths)

    def _is_handed_in(self, read: cst.BaseExpression) -> bool:
        function = self.rule.flow.function(read)
        return function is not None and dotted(read) in function.param_names - function.assigned

    def other_reads(self, call: cst.Call, receiver: cst.BaseExpression) -> list[cst.Name | cst.Attribute]:
        """Where the receiver is read again, the next one first: a name in the function, ``self.x`` in the class."""
        held = receiver
        while isinstance(held, cst.Subscript):
            held = held.value
        path = dotted(held)
        of_class = isinstance(held, cst.Attribute)
        around = self.rule.enclosing(call, cst.ClassDef if of_class else cst.FunctionDef) or self.rule.source.module
        nodes = [node for node in tree.walk(around) if isinstance(node, cst.Name | cst.Attribute)]
        reads = [node for node in nodes if dotted(node) == path and self._is_read(node)]
        later = [node for node in reads if self.rule.source.comes_before(call, node) and node is not held]
        recurs = of_class or (self.rule.flow.loop(call) is not None and not self._is_made_anew(call, path))
        return later + [node for node in reads if self.rule.source.comes_before(node, call)] if recurs else later

    def _is_made_anew(self, call: cst.Call, name: str) -> bool:
        """``for x in rows: n = torch.zeros(2); n += x; n.to(device)``: the next turn reads another one."""
        loop = self.rule.flow.loop(call)
        above, end = self.rule.parent(call), self.rule.parent(loop.node) if loop is not None else None
        while above is not None and above is not end:
            if isinstance(above, cst.IndentedBlock) and self._is_bound_in(above, name, call):
                return True
            above = self.rule.parent(above)
        return False

    def _is_bound_in(self, block: cst.IndentedBlock, name: str, before: cst.CSTNode) -> bool:
        return any(
            isinstance(assign, cst.Assign)
            and any(name in names_bound(each.target) for each in assign.targets)
            and self.rule.source.comes_before(assign, before)
            for line in block.body
            if isinstance(line, cst.SimpleStatementLine)
            for assign in line.body
        )

    def _is_read(self, node: cst.CSTNode) -> bool:
        parent = self.rule.parent(node)
        if isinstance(parent, cst.Attribute):
            return node is parent.value  # other.x
        if isinstance(parent, cst.Arg):
            return node is parent.value  # f(x=1)
        while isinstance(parent, cst.Element) and (around := self.rule.parent(parent)) is not None:
            node, parent = around, self.rule.parent(around)  # for i, (x, y) in rows
        if isinstance(parent, cst.For | cst.CompFor):
            return node is not parent.target
        return not isinstance(parent, cst.AssignTarget | cst.AnnAssign | cst.Param | cst.Del)

    def _meets_host(self, node: cst.BaseExpression) -> bool:
        """``x + torch.ones(3)``, ``F.mse_loss(found, x.float())`` of what is on the host."""
        func = self.rule.parent(node)
        while isinstance(func, cst.Attribute) and isinstance(call := self.rule.parent(func), cst.Call):
            node, func = call, self.rule.parent(call)  # x.float()
        values = map(self.rule.flow.value, self._beside(node))
        return any(value.is_tensor and value.place.is_host and value.zero is not True for value in values)

    def _is_moved(self, node: cst.CSTNode) -> bool:
        """Whether this is ``x`` of ``y = x.to(device)``, or of ``x.detach().cpu()``."""
        func = self.rule.parent(node)
        while isinstance(func, cst.Attribute) and isinstance(call := self.rule.parent(func), cst.Call):
            if func.attr.value in table.MOVES:
                return not isinstance(self.rule.parent(call), cst.Expr)
            func = self.rule.parent(call)
        return False


def _made_on_host(move: Move | None) -> cst.Call | None:
    """The call that made what is moved, where that is on the host."""
    made = move.value.origin if move is not None and move.value.place.is_host else None
    return made if isinstance(made, cst.Call) else None


def _moves_of(path: str) -> re.Pattern[str]:
    """How code moves what a path names, or binds it to what is made somewhere: ``net.eval().cuda()``."""
    own = rf"(?<![\w.]){re.escape(path)}\b"
    return re.compile(rf"{own}(\.\w+\([^()]*\))*\.(to|cuda)\(|{own}\s*=[^\n]*(\.(to|cuda)\(|device)")
