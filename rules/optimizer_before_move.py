from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.finding import Fix
from devlint.flow.facts import BuiltBeforeMove
from devlint.flow.hypothesis import names_device
from devlint.flow.names import called_name, dotted, last_word
from devlint.rule import Rule

#: Functions that bring what they are handed to a device: `optimizer_to(optimizer)`.
_BRINGS = re.compile(r"cuda|gpu|device|(^|_)to(_|$)", re.IGNORECASE)

_STATE = {
    "built": "`{optimizer}` makes its state here, on the host",
    "loaded": "its state is loaded here, to where the parameters are: on the host",
    "stepped": "the state of the first step is made here, on the host",
}


class OptimizerBeforeMove(Rule):
    """An optimizer has state on the host when the module that it trains moves to the device.

    ## What it does
    Reports an optimizer of `torch.optim` that is built from parameters of a module on the host and has state by the
    time the same code moves the module to a device and goes on to use the optimizer.

    ## Why is this bad
    State that the optimizer already has stays on the host when the module moves. `Adagrad` makes it in its
    constructor; `load_state_dict` puts it where the parameters are at that moment; `step` makes what is missing.
    The next `step` meets gradients on the device with state on the host, and raises.

    ## Example
    ```python
    import torch
    from torch import nn


    def train(path, device):
        model = nn.Linear(10, 2)
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
        model.to(device)
        optimizer.step()
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn


    def train(path, device):
        model = nn.Linear(10, 2)
        model.to(device)
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
        optimizer.step()
    ```

    ## Fix safety
    The fix puts the move above the line that builds the optimizer, comments and all. It is unsafe: what runs in
    between sees the module on the device. It is offered where both are statements of one block and what stands
    between them reads neither the module nor the optimizer and binds nothing that the move needs.

    ## Limits
    An optimizer without state is not reported: today's `Module.to` keeps the very parameters that it holds, and
    nothing is lost on CUDA, although PyTorch asks for the move first in every case. Silent where it is not
    known that the module is on the host when the optimizer is built (it is handed in, comes from a function of
    another file, or was loaded with a device map), where the optimizer is not used after the move, and where
    the two happen in different functions. State that is loaded again after the move is where it should be, and so is
    what the code moves itself (`for state in optimizer.state.values(): ...`) or has a function move
    (`optimizer_to(optimizer, device)`).

    Of six findings in 493 repositories, of one project and one cause, five were wrong: its own function moves the
    state. They are silent now.

    ## References
    - [torch.optim: constructing it](https://pytorch.org/docs/stable/optim.html#constructing-it)
    - [torch.optim.Optimizer.load_state_dict](https://pytorch.org/docs/stable/generated/torch.optim.Optimizer.load_state_dict.html)
    """

    group = "suspicious"
    fixable = "sometimes"

    def check(self) -> None:
        for fact in self.flow.facts.built_before_move.values():
            # Adam(model.parameters()); model.to(device)   nothing is lost
            if fact.state is not None and not self._is_state_moved(fact):
                self._report(fact, *fact.state)

    def _is_state_moved(self, fact: BuiltBeforeMove) -> bool:
        """``for state in optimizer.state.values(): ...``, or a function that is handed it brings it to a device."""
        assign, function = self.enclosing(fact.optimizer, cst.Assign), self.flow.function(fact.optimizer)
        name = dotted(assign.targets[0].target) if isinstance(assign, cst.Assign) else ""
        if not name:
            return False
        inside = [each for each in self.source.nodes_of(cst.Attribute) if self.flow.function(each) is function]
        if any(dotted(each) == f"{name}.state" for each in inside):
            return True
        for call in self.source.nodes_of(cst.Call):
            handed = [dotted(arg.value) for arg in call.args]
            if name not in handed or fact.module in handed or self.flow.function(call) is not function:
                continue  # train(model, optimizer, device)
            if _BRINGS.search(called_name(call)) or any(names_device(last_word(each)) for each in handed):
                return True
        return False

    def _report(self, fact: BuiltBeforeMove, how: str, at: cst.CSTNode) -> None:
        name = self.flow.name_of(fact.optimizer).rpartition(".")[2]
        message = (
            f"`{name}` keeps state on the host while `{fact.module}` moves to its device: the next `step()` raises"
        )
        notes = [
            self.note(at, _STATE[how].format(optimizer=name)),
            self.note(fact.move, f"`{fact.module}` moves here"),
        ]
        self.report(fact.optimizer, message, notes=notes, fix=self._fix(fact))

    def _fix(self, fact: BuiltBeforeMove) -> Fix | None:
        """Lift the line of the move above the line of the optimizer."""
        built = self.enclosing(fact.optimizer, cst.SimpleStatementLine)
        moved = self.enclosing(fact.move, cst.SimpleStatementLine)
        block = self.parent(built) if built is not None else None
        if built is None or moved is None or self.parent(moved) is not block:
            return None  # if cuda: model.cuda()
        if not isinstance(block, cst.Module | cst.IndentedBlock):
            return None  # if cuda: optimizer = ...; model.cuda()
        module = self._moved_by(moved, fact)
        if len(built.body) > 1 or module is None:
            return None
        first, last = block.body.index(built), block.body.index(moved)
        if first > last:
            return None  # in a loop, the move of a later round
        if not self._may_pass(moved, built, list(block.body[first + 1 : last]), module):
            return None
        start, end = self._lines(moved)
        above, _ = self._lines(built)
        text = self.source.text[start:end]
        if not text.endswith(("\n", "\r")):
            text += self.source.newline(above)  # the last line of the file
        return self.fix(
            f"move `{fact.module}` first",
            self.replace_between(above, above, text),
            self.replace_between(start, end, ""),
            safe=False,
        )

    def _moved_by(self, line: cst.SimpleStatementLine, fact: BuiltBeforeMove) -> cst.BaseExpression | None:
        """``model`` in ``model.to(device)`` or ``model = model.to(device)``, with nothing else on the line."""
        statement = line.body[0]
        if len(line.body) > 1 or not isinstance(statement, cst.Expr | cst.Assign) or statement.value is not fact.move:
            return None
        func = fact.move.func
        if not isinstance(func, cst.Attribute) or self.code(func.value) != fact.module:
            return None
        if isinstance(statement, cst.Assign) and [self.code(t.target) for t in statement.targets] != [fact.module]:
            return None
        return func.value

    def _may_pass(
        self, moved: cst.SimpleStatementLine, built: cst.SimpleStatementLine, between: list, module: cst.CSTNode
    ) -> bool:
        """Whether the lines between can do without the move, and the move without them."""
        needs = _words(moved)
        watched = _words(module) | _bound(built)
        if _bound(built) & needs:
            return False
        for line in between:
            if not isinstance(line, cst.SimpleStatementLine):
                return False  # whatever a loop or a condition does
            if _words(line) & watched or _bound(line) & needs:
                return False  # scheduler = StepLR(optimizer, 10); device = args.device
            if not _words(module):
                return False  # self.head = nn.Linear(8, 2) is a part of what self.to(device) moves
            calls = [node for node in tree.walk(line) if isinstance(node, cst.Call)]
            if not all(self.flow.name_of(node) or self.flow.move(node) for node in calls):
                return False  # a function of the project may use either without being handed it
        return True

    def _lines(self, line: cst.SimpleStatementLine) -> tuple[int, int]:
        """From the first of the comments that stand directly above a line to its end."""
        source = self.source
        start, end = source.offsets(line)
        comments = 0
        for leading in reversed(line.leading_lines):
            if leading.comment is None:
                break
            comments += 1
        row, _ = source.place(start)
        last, _ = source.place(end)
        return source.lines[row - 1 - comments], source.lines[last] if last < len(source.lines) else len(source.text)


def _words(node: cst.CSTNode) -> set[str]:
    """The names in a piece of code, those of attributes included."""
    return {each.value for each in tree.walk(node) if isinstance(each, cst.Name)} - {"self"}


def _bound(line: cst.SimpleStatementLine) -> set[str]:
    statement = line.body[0]
    if isinstance(statement, cst.Assign):
        return set().union(*(_words(target.target) for target in statement.targets))
    return _words(statement.target) if isinstance(statement, cst.AnnAssign | cst.AugAssign) else set()
