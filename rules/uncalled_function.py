from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.finding import Fix, Note
from devlint.flow import torch_table as table
from devlint.flow.names import dotted, last_word
from devlint.flow.scope import Function
from devlint.flow.value import MODULE, NAME, OPTIMIZER, TENSOR
from devlint.rule import Rule
from devlint.rules._any_tensor import OF_ANY_TENSOR, may_be_of_other_class
from devlint.rules._arguments import argument
from devlint.rules._copied import is_copied
from devlint.rules._errors import is_expected
from devlint.rules._moves import short
from devlint.rules._neighbours import Told, report_apart

TRUE, COMPARED, UNEQUAL, NOTHING, SHOWN, CONTEXT = "true", "compared", "unequal", "nothing", "shown", "context"

_SAID = {
    TRUE: "it is a function that is not called, and always true",
    COMPARED: "it is a function that is not called, and cannot be compared with a number",
    UNEQUAL: "it is a function that is not called, and never equals anything else",
    NOTHING: "the function is not called, so this does nothing",
    SHOWN: "the function is not called: itself is shown, and not what it gives",
    CONTEXT: "it is not called, and so no context manager",
}
_DEVICE_SAID = "it names a device, and is always true"
_MODULE_SAID = "it is a module, and always true"


class UncalledFunction(Rule):
    """A function is meant to be called, and its parentheses are missing.

    ## What it does
    Reports functions of torch and methods of tensors that are named and not called

    - as a condition: `if torch.cuda.is_available:`, `if x.is_floating_point:`, `if mask.any:`, also where the function
      is given a name first that is only tested afterwards;
    - in a comparison: `x.dim == 3`, `torch.cuda.device_count > 1`;
    - as a context manager: `with torch.no_grad:`;
    - as a statement of its own: `torch.cuda.synchronize`, `model.eval`;
    - in what is printed or formatted: `f"{loss.item}"`;

    and conditions that name a device, or torch's module for it, and do not ask whether it is there:
    `if torch.device("mps"):`, `"cuda" if torch.cuda else "cpu"`.

    ## Why is this bad
    A function is true, whatever it would answer: `if torch.cuda.is_available:` takes the branch for a GPU on every
    machine, and `if not x.is_contiguous:` is never taken. So are a `torch.device` and a module, whatever the machine
    has. `x.dim == 3` is always false. A statement that only names a function does nothing. `with torch.no_grad:` and an
    order (`>`) raise.

    ## Example
    ```python
    import torch

    device = torch.device("cuda" if torch.cuda.is_available else "cpu")
    ```

    ## Use instead
    ```python
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ```

    ## Fix safety
    The fix adds the parentheses, and asks for `x.numel()` in place of `x.size`, which is numpy's: safe. It is unsafe
    for a statement of its own, whose work is done from then on, and where an `if`, a `while` or an `assert` hangs on a
    truth that never changed: what it left out has never run, and what it asserts may not hold (`assert
    weight.is_contiguous`, of what callers transpose). `if x.cuda:` asks for `x.is_cuda`. There is
    none where the function needs arguments, or would give a whole tensor (`if x.half:`). For a device or its module the
    fix asks `is_available()`, which is unsafe; there is none for devices that are always there or that only others
    have, and none beside a comparison, where `device == torch.device("mps")` may be meant.

    ## Limits
    Silent where the function may be meant as a value (`wait = wait or torch.cuda.synchronize`), and where the test asks
    whether it is there (`if torch.cuda.is_bf16_supported and torch.cuda.is_bf16_supported():`). Methods are reported on
    what is surely a tensor, as others have attributes called `dim`: not on a parameter of which something is read that
    no tensor has, or whose attribute a class of the file sets, nor where `hasattr` asks for it, and not on what torch's
    functions make of objects of other classes, nor in files that do not import torch. `@torch.no_grad` without
    parentheses is fine. The same mark on several tests of a file is told once, and left out on what pytest never
    collects.

    Tentative where an `if` guards nothing but what is right anyway (`if x.cuda: x = x.cpu()`), or what does nothing
    where the answer would be no (`if rows.numel != 0: x[rows] = 0`, or `kept = y[rows]; x[others] = kept`); where it
    keeps an error of its own from those without a GPU, who get another one soon after (`if not
    torch.cuda.is_available: raise`: eight of twelve such guards in public code were held for worth a change); and in
    code that is copied from others.

    Silent on `torch.device(name)`, which may be there to raise for a wrong name, as it is in an `assert`, and where a
    module's test only asks whether this torch has it (`torch.xpu and torch.xpu.is_available()`). Tentative where what
    it guards does nothing without a GPU (`if torch.cuda: torch.cuda.manual_seed_all(0)`).

    Of 99 findings in repositories that nobody had tuned for, 63 were worth a change. The parentheses are missing in
    nearly all of the others as well, and what the test decides on does no harm either way. In 48 more repositories,
    strict readers held all six findings for true. It was in `correctness` until they read two more, in 180
    repositories: where there is a GPU, `torch.cuda.is_available` and its call decide alike, so that nothing goes wrong
    on a device; both were held for worth a change. In 2,596 more repositories and packages readers held thirteen of 21
    for true; five of six wrong ones stood in one file, of a framework of its own, and none of the six is told now. In
    713 more they held all fourteen for true, in 2,773 packages after that six of eight: the others ask a method of a
    tensor whether it is true (`assert x.is_contiguous`), and to call it would raise, or change nothing. It waits in the
    nursery since then.

    ## References
    - [torch.cuda.is_available](https://pytorch.org/docs/stable/generated/torch.cuda.is_available.html)
    - [torch.is_floating_point](https://pytorch.org/docs/stable/generated/torch.is_floating_point.html)
    """

    group = "nursery"
    fixable = "sometimes"

    def check(self) -> None:
        found = [self._told(node) for node in self.source.nodes_of(cst.Attribute)]
        found += [self._told_device(node) for node in self.source.nodes_of(cst.Call)]
        report_apart(self, (told for told in found if told is not None))

    def _told(self, node: cst.Attribute) -> Told | None:
        word = node.attr.value
        if word in _FUNCTIONS:
            value = self.flow.value(node)
            name = str(value.ref) if value.kind == NAME else ""
            if not name and isinstance(self.enclosing(node, cst.Decorator, cst.BaseStatement), cst.Decorator):
                name = self.flow.scope.qualified(node)  # the flow does not follow what decorates a class
            if _OF_TORCH.match(name) and name.count(".") >= _FUNCTIONS[word]:
                return self._judge(node, name)
        elif word in _METHODS and not isinstance(self.parent(node), cst.Call) and self._is_method(node, word):
            return self._judge(node, word)
        if word in _AVAILABLE:
            value = self.flow.value(node)
            if value.kind == NAME and value.ref in _MODULES and not self._is_looked_for(node):
                return self._always_true(node, _MODULE_SAID, word, tentative=self._guards_idle(node))
        return None

    def _is_method(self, node: cst.Attribute, word: str) -> bool:
        value = self.flow.value(node.value)
        if value.kind == MODULE or value.kind == OPTIMIZER:
            # model.dim  is an attribute of the class's own
            return word in _ACTIONS and isinstance(self.parent(node), cst.Expr)
        if value.kind != TENSOR or word in table.ATTRIBUTES or may_be_of_other_class(self, node.value):
            return False
        if word in _OF_OTHERS:
            return False  # sum(p.size for p in net.parameters() if p.train)   of parameters of a class of its own
        if "torch" not in self.flow.scope.packages:
            return False  # loss = model(tokens); print(f"{loss.item}")   of a framework of its own
        if self._is_asked_for(node):
            return False
        # def f(dtype): return dtype.is_floating_point  looks like a tensor by this very attribute
        param = value.origin
        if not isinstance(param, cst.Param) or param.annotation is not None:
            return True
        function = self.flow.function(node)
        name = param.name.value
        classes = self.flow.scope.classes.values()
        if function is None or any(word in cls.attrs or word in cls.attrs_of_class for cls in classes):
            return False  # class Spectrum: permute = False
        if function.attributes.get(name, set()) - OF_ANY_TENSOR:
            return False  # analyser.rate, which no tensor has
        if _is_parametrized(function, name):
            return False  # @pytest.mark.parametrize("kind", [qint8, qfloat8])
        return name in function.called_with or function.is_tensor_by_methods(name)

    def _is_asked_for(self, node: cst.Attribute) -> bool:
        """``if hasattr(analyser, "permute") and analyser.permute``: who asks whether it is there knows others."""
        holder, word = self.code(node.value), node.attr.value
        function = self.flow.function(node)
        return any(
            dotted(call.func) in ("hasattr", "getattr")
            and len(call.args) > 1
            and self.code(call.args[0].value) == holder
            and self.code(call.args[1].value).strip("\"'") == word
            for call in self.source.nodes_of(cst.Call)
            if self.flow.function(call) is function
        )

    # where it stands ----------------------------------------------------------------------------

    def _judge(self, node: cst.Attribute, name: str) -> Told | None:
        use = self._use(node, name)
        notes: list[Note] = []
        named: cst.BaseExpression = node
        test: cst.CSTNode | None = None
        if use is None:
            target, test = self._name_tested_later(node)
            if target is None or test is None:
                return None
            use, named = TRUE, target
            notes = [self.note(test, f"`{short(self.code(target))}` is tested here")]
        mark = self.enclosing(node, cst.Decorator, cst.BaseStatement)
        if is_expected(self, node) or (isinstance(mark, cst.Decorator) and self._has_no_effect(mark)):
            return None
        said = f"`{short(self.code(named))}`: {_SAID[use]}"
        # the same mark on each test of a file is one slip
        key = self.code(mark) if isinstance(mark, cst.Decorator) else node
        fix = self._fix(node, name, use, test)
        idle = name in _METHODS and (
            self._guards_nothing(node) if use == TRUE else use == UNEQUAL and self._guards_indexed(node)
        )
        if use == TRUE and name.endswith(".is_available"):
            idle = idle or self._is_implied(node) or self._only_raises(node) or self._guards_idle(node)
            idle = idle or self._is_read_nowhere(node)
        held_back = idle or is_copied(self, node)
        return Told(node, said, "the same here", notes=notes, fix=fix, key=key, tentative=held_back)

    def _guards_nothing(self, node: cst.Attribute) -> bool:
        """``if x.cuda: x = x.cpu()``: what is asked for does no harm where the answer would be no."""
        guard, holder = self.parent(node), self.code(node.value)
        if not isinstance(guard, cst.If) or guard.test is not node or guard.orelse is not None:
            return False
        lines = guard.body.body if isinstance(guard.body, cst.IndentedBlock) else [guard.body]
        harmless = {f"{holder} = {holder}.{method}()" for method in _ONCE_OR_TWICE}
        return all(self.code(line).strip() in harmless for line in lines)

    def _only_raises(self, node: cst.Attribute) -> bool:
        """``if not torch.cuda.is_available: raise SystemError("no GPU")``, which something else raises soon after."""
        guard = self.parent(self.parent(node) or node)
        if not isinstance(guard, cst.If) or not isinstance(guard.test, cst.UnaryOperation) or guard.orelse is not None:
            return False
        last = guard.body.body[-1] if guard.body.body else None
        statement = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
        return guard.test.expression is node and isinstance(statement, cst.Raise)

    def _is_read_nowhere(self, node: cst.Attribute) -> bool:
        """``self.kind = torch.cuda.FloatTensor if torch.cuda.is_available else torch.Tensor``, which nothing reads."""
        assign = self.enclosing(node, cst.Assign, cst.BaseStatement)
        path = dotted(assign.targets[0].target) if isinstance(assign, cst.Assign) else ""
        owner, _, kept = path.rpartition(".")
        project = self.flow.project
        return owner == "self" and project is not None and project.some_file_says(f"reads {kept}") is False

    def _is_implied(self, node: cst.Attribute) -> bool:
        """``torch.cuda.is_available and x.is_cuda``: what is there says by itself that there is one."""
        whole: cst.CSTNode = node
        while isinstance(above := self.parent(whole), cst.BooleanOperation) and isinstance(above.operator, cst.And):
            whole = above
        return whole is not node and _SAYS_SO.search(self.code(whole)) is not None

    def _guards_indexed(self, node: cst.Attribute) -> bool:
        """``if rows.numel != 0: low[rows] = mid[rows]``: with no rows nothing is written."""
        guard, holder = self.enclosing(node, cst.If, cst.SimpleStatementLine), self.code(node.value)
        if not isinstance(guard, cst.If) or guard.orelse is not None or not isinstance(guard.body, cst.IndentedBlock):
            return False
        picked: set[str] = set()
        return all(self._writes_at(line, holder, picked) for line in guard.body.body)

    def _writes_at(self, line: cst.CSTNode, index: str, picked: set[str]) -> bool:
        """``low[rows] = mid[rows]``; ``kept = mid[rows]``, and ``low[others] = kept``"""
        assign = line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None
        if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
            return False
        target = assign.targets[0].target
        if isinstance(target, cst.Name) and self._is_picked(assign.value, index, picked):
            picked.add(target.value)
            return True
        at_index = isinstance(target, cst.Subscript) and any(self.code(part.slice) == index for part in target.slice)
        return at_index or (isinstance(target, cst.Subscript) and self._is_picked(assign.value, index, picked))

    def _is_picked(self, node: cst.BaseExpression, index: str, picked: set[str]) -> bool:
        """Whether a value holds nothing but what an index picks: ``(low[rows], mid[:, rows])``."""
        if isinstance(node, cst.Tuple | cst.List):
            return all(self._is_picked(each.value, index, picked) for each in node.elements)
        if isinstance(node, cst.Subscript):
            at_index = any(self.code(part.slice) == index for part in node.slice)
            return at_index or self._is_picked(node.value, index, picked)
        return isinstance(node, cst.Name) and node.value in picked

    def _has_no_effect(self, mark: cst.Decorator) -> bool:
        """``@pytest.mark.skipif(...)`` on what pytest never collects: a function or class of another name."""
        called = mark.decorator.func if isinstance(mark.decorator, cst.Call) else mark.decorator
        if not self.flow.scope.qualified(called).startswith("pytest.mark."):
            return False
        marked = self.parent(mark)
        if isinstance(marked, cst.FunctionDef):
            return not marked.name.value.startswith("test")
        # class Kernels(unittest.TestCase): is collected whatever its name
        return isinstance(marked, cst.ClassDef) and not marked.bases and not marked.name.value.startswith("Test")

    def _fix(self, node: cst.Attribute, name: str, use: str, test: cst.CSTNode | None) -> Fix | None:
        if name in _NEEDS_ARGUMENTS or (name == "stride" and use in (COMPARED, UNEQUAL)):
            return None
        safe = use != NOTHING and not (use in (TRUE, UNEQUAL) and self._revives(test or node))
        if name == "size" and use in (TRUE, COMPARED, UNEQUAL):
            # rows.size == 0  is numpy's: `rows.size()` is a shape, and equals no number
            return self.fix("ask for the number of elements", self.replace(node.attr, "numel()"), safe=safe)
        if name == "cuda" and use == TRUE:
            # if x.cuda:   called, it would copy, and the truth of all of x be asked for
            return self.fix("ask where it is", self.replace(node.attr, "is_cuda"), safe=safe)
        if use in (TRUE, COMPARED, UNEQUAL) and name in _METHODS and not _answers(name):
            return None  # if x.half:   whatever was meant, it is not the truth of a whole tensor
        return self.fix("call it", self.insert_after(node, "()"), safe=safe)

    def _revives(self, node: cst.CSTNode) -> bool:
        """Whether code that never ran would: ``if loss.item == 0: loss = []``."""
        statement = self.enclosing(node, cst.If, cst.While, cst.BaseSmallStatement)
        decides = isinstance(statement, cst.If | cst.While | cst.Assert)
        return decides and any(each is node for each in tree.walk(statement.test))

    def _use(self, node: cst.Attribute, name: str) -> str | None:
        """What is done with the function itself; ``None`` where it may be meant as a value."""
        parent = self.parent(node)
        if isinstance(parent, cst.Expr):
            return NOTHING if name.rpartition(".")[2] in _ACTIONS else None
        if isinstance(parent, cst.WithItem):
            return CONTEXT if name in _CONTEXTS else None
        if name in _CONTEXTS:
            return None
        if isinstance(parent, cst.FormattedStringExpression):
            return SHOWN
        if isinstance(parent, cst.Comparison):
            return _compared(node, parent)
        if isinstance(parent, cst.ComparisonTarget):
            above = self.parent(parent)
            return _compared(node, above) if isinstance(above, cst.Comparison) else None
        if isinstance(parent, cst.Arg):
            return self._as_argument(parent, name)
        return TRUE if self._is_tested(node) else None

    def _as_argument(self, arg: cst.Arg, name: str) -> str | None:
        call = self.parent(arg)
        if not isinstance(call, cst.Call):
            return None
        called = dotted(call.func).rpartition(".")[2]
        if called == "print" and arg.keyword is None:
            return SHOWN
        if not name.startswith("torch."):
            return None
        if called in _SKIPS and arg is call.args[0]:
            return TRUE  # @unittest.skipUnless(torch.cuda.is_available, "needs a GPU")
        flag = arg.keyword is not None and arg.keyword.value in _FLAGS
        return TRUE if flag and self.flow.name_of(call).startswith("torch.") else None

    def _is_tested(self, node: cst.BaseExpression) -> bool:
        """Whether its truth decides something, and is not only asked for to see whether it is there."""
        child: cst.CSTNode = node
        parent = self.parent(node)
        alone = True
        while isinstance(parent, cst.BooleanOperation):
            if self._is_called_in(parent, node):
                return False  # torch.cuda.is_bf16_supported and torch.cuda.is_bf16_supported()
            alone = alone and child is parent.right
            child, parent = parent, self.parent(parent)
        if isinstance(parent, cst.UnaryOperation):
            return isinstance(parent.operator, cst.Not)
        if isinstance(parent, cst.If | cst.While | cst.Assert | cst.IfExp | cst.CompIf):
            return child is parent.test and not self._is_called_below(parent, node)
        # wait = synchronize or torch.cuda.synchronize  is a value
        return isinstance(node, cst.Attribute) and child is not node and not alone

    def _is_called_below(self, parent: cst.CSTNode, node: cst.BaseExpression) -> bool:
        """``if torch.cuda.is_bf16_supported: return torch.cuda.is_bf16_supported()`` asks whether this torch has it."""
        return isinstance(parent, cst.If | cst.IfExp) and self._is_called_in(parent.body, node)

    def _is_called_in(self, where: cst.CSTNode, node: cst.BaseExpression) -> bool:
        code = self.code(node)
        return f"{code}(" in self.code(where)

    # devices and modules ------------------------------------------------------------------------

    def _told_device(self, node: cst.Call) -> Told | None:
        """``if torch.device("mps"):``"""
        if self.flow.name_of(node) != "torch.device":
            return None
        arg = argument(node, 0, "type", "device")
        # if torch.device(name):   raises for a wrong name, as `assert torch.device("npu")` does without the backend
        if arg is None or not isinstance(arg.value, cst.SimpleString) or isinstance(self.parent(node), cst.Assert):
            return None
        kind = str(arg.value.evaluated_value).partition(":")[0]
        return self._always_true(node, _DEVICE_SAID, kind)

    def _always_true(
        self, node: cst.Attribute | cst.Call, said: str, kind: str, *, tentative: bool = False
    ) -> Told | None:
        """Report what names a kind of device, where its truth decides something."""
        parent = self.parent(node)
        if (
            isinstance(parent, cst.BooleanOperation)
            and isinstance(parent.operator, cst.Or)
            and isinstance(self.parent(parent), cst.Assign | cst.Arg | cst.Return)
        ):
            return None  # module = torch.xpu or torch.cuda
        notes: list[Note] = []
        named: cst.BaseExpression = node
        test: cst.CSTNode = node
        marked = isinstance(parent, cst.Arg) and self._as_argument(parent, "torch.device") == TRUE
        if not marked and not self._is_tested(node):
            target, later = self._name_tested_later(node)
            if target is None or later is None:
                return None
            named, test = target, later
            notes = [self.note(test, f"`{short(self.code(target))}` is tested here")]
        if is_expected(self, node):
            return None
        fix = None
        holder = node.func if isinstance(node, cst.Call) else node
        if kind in _AVAILABLE and isinstance(holder, cst.Attribute) and not self._is_beside_comparison(test):
            torch = self.code(holder).partition(".")[0]
            edit = self.replace(node, f"{torch}.{_AVAILABLE[kind]}.is_available()")
            fix = self.fix("ask whether there is one", edit, safe=False)
        return Told(
            node,
            f"`{short(self.code(named))}`: {said}",
            "the same here",
            notes=notes,
            fix=fix,
            key=node,
            tentative=tentative,
        )

    def _is_beside_comparison(self, node: cst.CSTNode) -> bool:
        """``device == torch.device("cuda") or torch.device("mps")``: the comparison is what was left out."""
        above = self.parent(node)
        while isinstance(above, cst.BooleanOperation):
            if isinstance(above.left, cst.Comparison) or isinstance(above.right, cst.Comparison):
                return True
            above = self.parent(above)
        return False

    def _is_looked_for(self, node: cst.Attribute) -> bool:
        """Whether the truth of a module asks if this torch has it, as what is asked of it afterwards needs."""
        asked = rf"{re.escape(self.code(node))}\.(is_available|is_built|device_count)\(|\b(has|get)attr\("
        if re.search(asked, self.source.text) is None:
            return False  # most files, without the code of a whole function being made
        where = self.enclosing(node, cst.If, cst.While, cst.BaseSmallStatement, cst.Decorator)
        if isinstance(self.parent(node), cst.UnaryOperation):
            # if not torch.xpu: return 0   return torch.xpu.device_count()
            where = self.enclosing(node, cst.FunctionDef, cst.Module)
        return where is not None and re.search(asked, self.code(where)) is not None

    def _guards_idle(self, node: cst.Attribute) -> bool:
        """``if torch.cuda: torch.cuda.manual_seed_all(0)``, which does nothing without a GPU."""
        guard = self.parent(node)
        if not isinstance(guard, cst.If) or guard.test is not node or guard.orelse is not None:
            return False
        lines = guard.body.body
        return all(_IDLE.match(self.code(line).strip()) for line in lines)

    # tested under another name ------------------------------------------------------------------

    def _name_tested_later(self, node: cst.BaseExpression) -> tuple[cst.BaseExpression | None, cst.CSTNode | None]:
        """``use_cuda = torch.cuda.is_available``: the name, and where it is tested, if nothing else is done with it."""
        parent = self.parent(node)
        if not isinstance(parent, cst.Assign) or parent.value is not node or len(parent.targets) != 1:
            return None, None
        target = parent.targets[0].target
        if isinstance(target, cst.Name):
            function = self.flow.function(node)
            uses: list[cst.BaseExpression] = [
                use for use in self.source.nodes_of(cst.Name) if use.value == target.value and use is not target
            ]
            if function is not None:
                uses = [use for use in uses if self.flow.function(use) is function]
        elif isinstance(target, cst.Attribute) and dotted(target.value) == "self":
            uses = [
                use
                for use in self.source.nodes_of(cst.Attribute)
                if use.attr.value == target.attr.value and use is not target
            ]
        else:
            return None, None
        tested = [use for use in uses if self._is_tested(use)]
        return (target, tested[0]) if tested and len(tested) == len(uses) else (None, None)


def _compared(node: cst.BaseExpression, comparison: cst.Comparison) -> str | None:
    """How a function is compared with a number or another constant."""
    if len(comparison.comparisons) != 1:
        return None
    target = comparison.comparisons[0]
    other = target.comparator if comparison.left is node else comparison.left
    constant = isinstance(other, cst.Integer | cst.Float) or dotted(other) in ("True", "False")
    if isinstance(target.operator, cst.Equal | cst.NotEqual):
        return UNEQUAL if constant else None
    order = isinstance(target.operator, cst.LessThan | cst.LessThanEqual | cst.GreaterThan | cst.GreaterThanEqual)
    return COMPARED if order and constant else None


def _answers(method: str) -> bool:
    """Whether a method gives one number, or yes or no, when it is called with nothing."""
    return method.startswith("is_") or method in _NUMBERS


_NUMBERS = frozenset(
    "all any argmax argmin count_nonzero dim element_size get_device item max mean median min nanmean nansum "
    "ndimension nelement norm numel prod std sum var".split()
)
#: Methods that change nothing where it is so already.
_ONCE_OR_TWICE = ("cpu", "contiguous", "detach", "dequantize", "resolve_conj", "resolve_neg", "to_dense")
#: What to ask for each kind of device that a machine may be without, and the modules that are taken for the question.
_AVAILABLE = {"cuda": "cuda", "mps": "backends.mps", "xpu": "xpu"}
_MODULES = frozenset({"torch.cuda", "torch.mps", "torch.xpu", "torch.backends.mps"})
#: What does nothing where there is no GPU of NVIDIA's.
_IDLE = re.compile(r"torch\.cuda\.(empty_cache|manual_seed|manual_seed_all)\([^()]*\)\s*(#.*)?$")
#: What holds for nothing but what is on a GPU.
_SAYS_SO = re.compile(r"\.is_cuda\b|\bdevice\b[^=!]*== *[\"']cuda|[\"']cuda[\"'] in ")
_CONTEXTS = frozenset(
    {
        "torch.no_grad",
        "torch.inference_mode",
        "torch.enable_grad",
        "torch.set_grad_enabled",
        "torch.autocast",
        "torch.amp.autocast",
        "torch.cuda.amp.autocast",
        "torch.profiler.profile",
    }
)
_NEEDS_ARGUMENTS = frozenset({"torch.set_grad_enabled", "torch.autocast", "torch.amp.autocast"})
#: Functions of torch by their last word, and how many dots their names have at least.
#: Parts of torch, and those that packages for other devices put there: what else stands there is somebody's own.
_OF_TORCH = re.compile(
    r"torch\.(\w+$|(accelerator|amp|autograd|backends|compiler|cpu|cuda|distributed|hpu|jit|mlu|mps|mtia|musa|npu|onnx|"
    r"profiler|xpu)\.)"
)
_FUNCTIONS = {
    **dict.fromkeys(("is_available", "is_built", "is_initialized", "device_count", "is_bf16_supported"), 2),
    **dict.fromkeys(("is_grad_enabled", "is_inference_mode_enabled", "is_autocast_enabled", "is_deterministic"), 1),
    **dict.fromkeys(("is_scripting", "is_tracing", "is_compiling", "is_in_onnx_export"), 2),
    **dict.fromkeys(("synchronize", "empty_cache", "barrier", "destroy_process_group", "current_device"), 2),
    **{name.rpartition(".")[2]: 1 for name in _CONTEXTS},
}
#: Done for its effect, so that a statement of its own was meant to do it.
_ACTIONS = frozenset(
    "synchronize empty_cache barrier destroy_process_group eval train cuda cpu step zero_grad backward".split()
)
_METHODS = frozenset(
    {"is_floating_point", "is_complex", "is_inference", "is_signed", "is_conj", "is_neg", *_ACTIONS}
    | {name for name in table.METHODS if not name.startswith("_") and not name.endswith("_")}
    # fields of what `torch.aminmax(x)`, `x.sort()` and `torch.linalg.slogdet(x)` give
    - {"min", "max", "values", "indices", "sign"}
)
#: Of these actions tensors have none.
_OF_OTHERS = _ACTIONS - {"cuda", "cpu", "backward"}
_FLAGS = frozenset({"pin_memory", "enabled", "non_blocking", "drop_last"})
_SKIPS = frozenset({"skipIf", "skipUnless", "skipif"})


def _is_parametrized(function: Function, name: str) -> bool:
    """Whether pytest hands a function that parameter from a list, which says what it is."""
    calls = [mark.decorator for mark in function.node.decorators if isinstance(mark.decorator, cst.Call)]
    told = [call.args[0].value for call in calls if last_word(dotted(call.func)) == "parametrize" and call.args]
    return any(
        isinstance(each, cst.SimpleString) and name in re.findall(r"\w+", str(each.evaluated_value))
        for names in told
        for each in tree.walk(names)
    )
