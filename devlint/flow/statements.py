"""Following statements: branches join, loops run until nothing changes, paths end at ``return``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import libcst as cst

from devlint import tree
from devlint.flow import copies, hypothesis, rounds, suppositions
from devlint.flow.binding import bind
from devlint.flow.expressions import evaluate, operate
from devlint.flow.frame import DEFAULT_PLACE, NO_GRAD, Around, Env, Frame
from devlint.flow.names import (
    annotated,
    annotation_names,
    dotted,
    imported,
    is_tensor_annotation,
    target_names,
    targets_in,
)
from devlint.flow.narrowing import narrow, narrow_to_type, remember_texts
from devlint.flow.place import from_string
from devlint.flow.scope import CONSTRUCTOR, Function
from devlint.flow.value import (
    CLASS,
    CONTEXT,
    DATA,
    DEVICE,
    DICT,
    FUNCTION,
    HOST_DATA,
    LIST,
    NAME,
    NOTHING,
    SELF,
    TENSOR,
    THING,
    TUPLE,
    UNKNOWN,
    UNKNOWN_KIND,
    Value,
    element,
    is_same,
    join,
    tensor,
    without_place,
)

#: Rounds after which nothing is believed of what a loop that still changes binds.
_ROUNDS = 3
#: Loops inside this many others are followed once only, believing nothing of what they bind.
_DEEP = 3


def execute_block(frame: Frame, body: cst.BaseSuite | Sequence[cst.CSTNode]) -> None:
    """Follow the statements of a block; those after a ``return`` are not reached."""
    statements = body.body if isinstance(body, cst.BaseSuite) else body
    for statement in statements:
        if frame.env is None:
            return
        kind = type(statement)
        if type(statement) is cst.SimpleStatementLine:
            for small in statement.body:
                if frame.env is None:
                    return
                handler = _HANDLERS.get(type(small))
                if handler is not None:
                    handler(frame, small)
        else:
            handler = _HANDLERS.get(kind)
            if handler is not None:
                handler(frame, statement)
        if frame.tries and frame.env is not None:
            seen = frame.tries[-1]
            seen[0] = frame.merge(seen[0], dict(frame.env))


def _expression(frame: Frame, node: cst.Expr) -> None:
    evaluate(frame, node.value)
    _refine_by_backward(frame, node.value)


def _refine_by_backward(frame: Frame, node: cst.BaseExpression) -> None:
    # `loss.backward()`, `scaler.scale(loss).backward()`: whatever made it, loss is a scalar tensor
    if (
        type(node) is cst.Call
        and type(node.func) is cst.Attribute
        and node.func.attr.value == "backward"
        and frame.env is not None
    ):
        loss = node.func.value
        if (
            type(loss) is cst.Call
            and type(loss.func) is cst.Attribute
            and loss.func.attr.value == "scale"
            and loss.args
        ):
            loss = loss.args[0].value
        value = frame.env.get(loss.value) if type(loss) is cst.Name else None
        if type(loss) is cst.Name and value is not None and value.kind == THING:
            frame.env[loss.value] = value.but(kind=TENSOR, ref=None, zero=True, tracked=True)
        elif type(loss) is cst.Name and value is not None and value.kind == TENSOR:
            frame.env[loss.value] = value.but(tracked=True)


def _assign(frame: Frame, node: cst.Assign) -> None:
    value = evaluate(frame, node.value)
    if value.kind == UNKNOWN_KIND and type(node.value) is cst.Name and frame.function is not None:
        value = frame.parts_of_parameter(node.value.value, node.targets[0].target) or value
    elif value.kind == UNKNOWN_KIND:
        value = suppositions.in_place_of(frame, node, value)
    for target in node.targets:
        bind(frame, target.target, value, node)


def _annotated(frame: Frame, node: cst.AnnAssign) -> None:
    if node.value is None:
        return
    value = evaluate(frame, node.value)
    if value.kind == UNKNOWN_KIND:
        if is_tensor_annotation(node.annotation):
            value = tensor(value.place, node)
        elif set(annotation_names(node.annotation.annotation)) <= {"int", "float", "str", "bool"}:
            value = HOST_DATA
    bind(frame, node.target, value, node)


def _augmented(frame: Frame, node: cst.AugAssign) -> None:
    left = evaluate(frame, node.target)
    right = evaluate(frame, node.value)
    result = operate(frame, node, node.target, left, node.value, right, type(node.operator))
    if left.kind == LIST and right.kind in (LIST, TUPLE):
        result = join(left, Value(LIST, items=element(right)))
    bind(frame, node.target, result, node)


def _return(frame: Frame, node: cst.Return) -> None:
    value = evaluate(frame, node.value) if node.value is not None else NOTHING
    if not frame.dead:
        frame.returns.append(value)
        if node.value is not None:
            frame.gives_back(node.value, value)
        frame.at_return = frame.merge(frame.at_return, frame.env)
    frame.env = None


def _raise(frame: Frame, node: cst.Raise) -> None:
    if node.exc is not None:
        evaluate(frame, node.exc)
    frame.env = None


def _break(frame: Frame, node: cst.Break) -> None:
    if frame.loops and frame.env is not None:
        frame.loops[-1].breaks.append(frame.env)
    frame.env = None


def _continue(frame: Frame, node: cst.Continue) -> None:
    if frame.loops and frame.env is not None:
        frame.loops[-1].continues.append(frame.env)
    frame.env = None


def _if(frame: Frame, node: cst.If) -> None:
    # `elif` nests: follow the chain without recursion
    ends: list[Env | None] = []
    ruled_out: list[Env | None] = []
    current: cst.If | cst.Else | None = node
    dead_here = 0
    later: list[dict[str, tuple[Value, Value]]] = []
    frame.conditional += 1
    while current is not None:
        if isinstance(current, cst.Else):
            execute_block(frame, current.body)
            ends.append(frame.env)
            break
        test = evaluate(frame, current.test)
        frame.truth_tested(current.test, test)
        truth = hypothesis.truth(frame, current.test)
        before = frame.env
        entry = dict(before) if before is not None else None
        frame.env = entry
        frame.dead += truth is False
        first_round = current.orelse is not None and _asks_for_round(frame, current.test)
        if entry is not None:
            narrow(frame, current.test, True)
            later.append(rounds.forget_start(frame, current.test, True))
            if first_round and current.orelse is not None:
                _forget_start(frame, current.orelse.body)
        execute_block(frame, current.body)
        frame.dead -= truth is False
        (ends if truth is not False else ruled_out).append(frame.env)
        frame.env = dict(before) if before is not None else None
        if frame.env is not None:
            narrow(frame, current.test, False)
            later.append(rounds.forget_start(frame, current.test, False))
            if first_round:
                _forget_start(frame, current.body)
        if truth is True:
            # what follows is ruled out: followed for its values, nothing in it is reported
            frame.dead += 1
            dead_here += 1
        current = current.orelse
        if current is None:
            (ends if truth is not True and not dead_here else ruled_out).append(frame.env)
    frame.dead -= dead_here
    frame.conditional -= 1
    if dead_here and len(ends) > 1 and isinstance(current, cst.Else):
        ruled_out.append(ends.pop())  # an `else` under a test that holds
    merged: Env | None = None
    for end in ends:
        for held in later:
            rounds.restore_start(end, held)
        merged = frame.merge(merged, end, node.test)
    frame.env = merged
    if merged is not None:
        for end in ruled_out:
            remember_texts(merged, end)


def _asks_for_round(frame: Frame, test: cst.BaseExpression) -> bool:
    """Whether a test in a loop tells its first round from the others: ``if first:``, ``if i == 0:``."""
    if not frame.loops:
        return False
    if type(test) is cst.UnaryOperation and isinstance(test.operator, cst.Not):
        test = test.expression
    if type(test) is cst.Comparison and len(test.comparisons) == 1:
        if type(test.comparisons[0].comparator) is not cst.Integer:
            return False
        test = test.left
    return type(test) is cst.Name and test.value in _bound_in(frame, frame.loops[-1].node)


def _forget_start(frame: Frame, first: cst.BaseSuite) -> None:
    """What the loop found bound is no more there in its later rounds, where the first round binds it anew:
    ``if first: out = y`` ``else: out = torch.cat([out, y])``; ``if started: y = f(x + y)`` ``elif ...: y = f(x)``."""
    env, started = frame.env, frame.loops[-1].entry
    if env is None or started is None:
        return
    bound: set[str] = set()
    for statement in first.body:
        for small in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
            if isinstance(small, cst.Assign):
                for target in small.targets:
                    target_names(target.target, bound)
    for name in bound:
        if name in env and env[name] is started.get(name):
            env[name] = without_place(env[name])


def _for(frame: Frame, node: cst.For) -> None:
    over = evaluate(frame, node.iter)
    each = element(over)
    whole = _iterated_path(frame, node.iter)
    frame.iterated.append(whole)
    _loop(frame, node, lambda: bind(frame, node.target, each), None)
    frame.iterated.pop()
    if whole is not None and frame.env is not None and whole in frame.rewritten:
        # `for k in batch: batch[k] = batch[k].to(device)` rewrites the whole of it
        frame.flow.has_paths |= whole not in frame.env  # for k in batch["in"]:
        frame.env[whole] = frame.rewritten.pop(whole)


def _iterated_path(frame: Frame, node: cst.BaseExpression) -> str | None:
    """``batch`` in ``for k in batch``, ``batch.keys()``, ``list(batch.items())``."""
    while type(node) is cst.Call:
        if type(node.func) is cst.Attribute and node.func.attr.value in ("keys", "items") and not node.args:
            node = node.func.value
        elif type(node.func) is cst.Name and node.func.value == "list" and len(node.args) == 1:
            node = node.args[0].value
        else:
            return None
    return frame.key(node)


def _while(frame: Frame, node: cst.While) -> None:
    def test() -> None:
        frame.truth_tested(node.test, evaluate(frame, node.test))

    _loop(frame, node, test, node.test)


def _loop(frame: Frame, node: cst.For | cst.While, start: Callable[[], None], test: cst.BaseExpression | None) -> None:
    entry = frame.env
    state = entry
    exits: list[Env] = []
    depth = len(frame.loops)
    rounds = _ROUNDS if depth == 0 else 2 if depth < _DEEP else 0
    for round_number in range(rounds + 1):
        if round_number == rounds:  # still changing, or too deep to wait for it
            state = _without(state, _bound_in(frame, node))
        frame.env = dict(state) if state is not None else None
        start()
        breaks: list[Env] = []
        continues: list[Env] = []
        frame.loops.append(Around(node, entry, breaks, continues))
        execute_block(frame, node.body)
        frame.loops.pop()
        end = frame.env
        for path in continues:
            end = frame.merge(end, path)
        exits = breaks
        merged = frame.merge(state, end)
        if merged is None or round_number == rounds or _same(state, merged):
            break
        state = merged
    forever = type(test) is cst.Name and test.value == "True"
    frame.env = state if not (forever and exits) else None
    if node.orelse is not None and frame.env is not None:
        execute_block(frame, node.orelse.body)
    for path in exits:
        frame.env = frame.merge(frame.env, path)
    if forever and not exits:
        frame.env = None if not frame.loops else frame.env


def _bound_in(frame: Frame, loop: cst.For | cst.While) -> set[str]:
    """Names that the loop's body binds, or hands to something that may change what they hold."""
    known = frame.flow.bound_in_loops.get(loop)
    if known is None:
        known = frame.flow.bound_in_loops[loop] = set()
        if type(loop) is cst.For:
            _heads(loop.target, known)
        for node in tree.walk(loop.body):
            if type(node) is cst.Call:
                if type(node.func) is cst.Attribute:
                    _heads(node.func.value, known)
                for arg in node.args:
                    _heads(arg.value, known)
            elif type(node) in _BINDING:
                _note_bound(node, known)
    return known


#: Statements and parts of them that bind names. To ask `isinstance` of so many nodes is slow: LibCST's are abstract.
_BINDING = frozenset(
    {
        cst.AssignTarget, cst.AugAssign, cst.AnnAssign, cst.NamedExpr, cst.For, cst.Del, cst.AsName, cst.NameItem,
        cst.FunctionDef, cst.ClassDef, cst.Import, cst.ImportFrom, cst.MatchAs, cst.MatchStar, cst.MatchMapping,
    }
)  # fmt: skip


def _note_bound(node: cst.CSTNode, known: set[str]) -> None:
    if isinstance(node, cst.AssignTarget | cst.AugAssign | cst.AnnAssign | cst.NamedExpr | cst.For | cst.Del):
        _heads(node.target, known)
    elif isinstance(node, cst.AsName | cst.NameItem | cst.FunctionDef | cst.ClassDef):
        _heads(node.name, known)
    elif isinstance(node, cst.Import | cst.ImportFrom):
        known.update(alias for alias, _ in imported(node))
    elif isinstance(node, cst.MatchAs | cst.MatchStar | cst.MatchMapping):
        name = node.rest if isinstance(node, cst.MatchMapping) else node.name
        if name is not None:
            known.add(name.value)


def _heads(target: cst.BaseExpression, into: set[str]) -> None:
    """``a`` of ``a``, ``a.b`` and ``a[0]``, and of each target in a tuple."""
    todo: list[cst.BaseExpression] = [target]
    while todo:
        node = todo.pop()
        if type(node) is cst.Name:
            into.add(node.value)
        elif type(node) is cst.Attribute or type(node) is cst.Subscript or type(node) is cst.StarredElement:
            todo.append(node.value)
        elif type(node) is cst.Tuple or type(node) is cst.List:
            todo += [item.value for item in node.elements]


def _without(env: Env | None, names: set[str]) -> Env | None:
    if env is None:
        return None
    kept = {}
    for key, value in env.items():
        if key.partition(".")[0].partition("[")[0] not in names or value.kind in (NAME, FUNCTION, CLASS, SELF):
            kept[key] = value
        elif "." not in key and "[" not in key:
            kept[key] = UNKNOWN
    return kept


def _same(a: Env | None, b: Env | None) -> bool:
    if a is None or b is None:
        return a is b
    if a is b:
        return True
    for key, value in b.items():
        mine = a.get(key)
        if mine is None or not is_same(mine, value):
            return False
    return True


def _with(frame: Frame, node: cst.With) -> None:
    env = frame.env
    assert env is not None
    saved = {key: env.get(key) for key in (DEFAULT_PLACE, NO_GRAD)}
    may_wait = False
    expects_error = any(_expects_error(item.item) for item in node.items)
    frame.dead += expects_error
    for item in node.items:
        value = evaluate(frame, item.item)
        if value.kind == DEVICE or (value.kind == DATA and value.text is not None):
            if frame.env is not None and value.kind == DEVICE:
                frame.env[DEFAULT_PLACE] = Value(DEVICE, value.place)
        elif value.kind == CONTEXT and value.ref in ("torch.no_grad", "torch.inference_mode"):
            if frame.env is not None:
                frame.env[NO_GRAD] = HOST_DATA
        elif value.kind == CONTEXT and value.ref == "torch.enable_grad" and frame.env is not None:
            frame.env.pop(NO_GRAD, None)
        elif value.kind == UNKNOWN_KIND and _may_redirect(frame, item.item) and frame.env is not None:
            # `with init_empty_weights():` and the like decide where factories put things
            frame.env[DEFAULT_PLACE] = Value(DEVICE)
        may_wait = may_wait or value.kind not in (CONTEXT, DEVICE, DATA)
        if item.asname is not None:
            given = value if value.kind not in (CONTEXT, DEVICE) else UNKNOWN
            bind(frame, item.asname.name, given)
    execute_block(frame, node.body)
    if may_wait:
        copies.may_be_done(frame)
    frame.dead -= expects_error
    if frame.env is None and expects_error:
        frame.env = env  # `with pytest.raises(...): raise` goes on after it
    if frame.env is not None:
        for key, value_before in saved.items():
            if value_before is None:
                frame.env.pop(key, None)
            else:
                frame.env[key] = value_before


def _expects_error(node: cst.BaseExpression) -> bool:
    """``with pytest.raises(RuntimeError):`` and its kin: what fails in there is meant to."""
    name = dotted(node.func) if type(node) is cst.Call else ""
    return name.rpartition(".")[2] in ("raises", "assertRaises", "assertRaisesRegex")


def _may_redirect(frame: Frame, node: cst.BaseExpression) -> bool:
    func = node.func if type(node) is cst.Call else node
    given = [frame.values.get(arg.value) for arg in node.args] if type(node) is cst.Call else []
    for value in given:  # with on("cuda"):
        if value is not None and (
            value.kind == DEVICE or (value.text is not None and from_string(value.text).is_known)
        ):
            return True
    called = frame.values.get(func)
    function = called.ref if called is not None else None
    if isinstance(function, Function) and function.attribute_words & {"device", "set_default_device"}:
        return True  # def on_gpu(): with torch.device("cuda"): yield
    name = func.attr.value if type(func) is cst.Attribute else func.value if type(func) is cst.Name else ""
    return isinstance(name, str) and any(word in name.lower() for word in ("device", "init", "meta", "empty", "cuda"))


def _try(frame: Frame, node: cst.Try | cst.TryStar) -> None:
    # a handler may find the variables as they are before or after any statement of the body
    seen: list[Env | None] = [dict(frame.env) if frame.env is not None else None]
    frame.conditional += 1
    frame.tries.append(seen)
    execute_block(frame, node.body)
    frame.tries.pop()
    caught = seen[0]
    ends: list[Env | None] = []
    if node.orelse is not None and frame.env is not None:
        execute_block(frame, node.orelse.body)
    ends.append(frame.env)
    for handler in node.handlers:
        frame.env = dict(caught) if caught is not None else None
        if frame.env is not None and handler.name is not None:
            bind(frame, handler.name.name, UNKNOWN)
        execute_block(frame, handler.body)
        ends.append(frame.env)
    merged: Env | None = None
    for end in ends:
        merged = frame.merge(merged, end)
    frame.conditional -= 1
    frame.env = merged
    if node.finalbody is not None:
        _finally(frame, node.finalbody, merged, caught)
    if frame.tries:
        outer = frame.tries[-1]
        outer[0] = frame.merge(outer[0], caught)


def _finally(frame: Frame, node: cst.Finally, after: Env | None, caught: Env | None) -> None:
    """It is run on the way out as well; what it leaves alone is afterwards as it was without an exception."""
    entry = frame.merge(dict(after) if after is not None else None, caught)
    frame.env = dict(entry) if entry is not None else None
    execute_block(frame, node.body)
    left = frame.env
    if after is None or left is None or entry is None:
        frame.env = None
        return
    for name, value in after.items():
        if left.get(name) is entry.get(name):
            left[name] = value


def _match(frame: Frame, node: cst.Match) -> None:
    subject = evaluate(frame, node.subject)
    before = frame.env
    ends: list[Env | None] = []
    exhaustive = False
    frame.conditional += 1
    for case in node.cases:
        frame.env = dict(before) if before is not None else None
        _bind_pattern(frame, case.pattern, subject)
        if isinstance(case.pattern, cst.MatchClass):
            narrow_to_type(frame, node.subject, frame.scope.qualified(case.pattern.cls), True)
        if case.guard is not None:
            frame.truth_tested(case.guard, evaluate(frame, case.guard))
        elif isinstance(case.pattern, cst.MatchAs) and case.pattern.pattern is None:
            exhaustive = True
        execute_block(frame, case.body)
        ends.append(frame.env)
    frame.conditional -= 1
    if not exhaustive:
        ends.append(before)
    merged: Env | None = None
    for end in ends:
        merged = frame.merge(merged, end)
    frame.env = merged


def _bind_pattern(frame: Frame, pattern: cst.MatchPattern, subject: Value) -> None:
    """Names that a pattern captures."""
    if type(pattern) is cst.MatchAs:
        if pattern.pattern is not None:
            _bind_pattern(frame, pattern.pattern, subject)
        if pattern.name is not None:
            bind(frame, pattern.name, subject)
    elif isinstance(pattern, cst.MatchTuple | cst.MatchList):
        items = subject.items if subject.kind == TUPLE and len(subject.items) == len(pattern.patterns) else None
        for position, part in enumerate(pattern.patterns):
            if isinstance(part, cst.MatchStar):
                if part.name is not None:
                    bind(frame, part.name, Value(LIST, items=element(subject)))
            else:
                _bind_pattern(frame, part.value, items[position] if items is not None else element(subject))
    elif type(pattern) is cst.MatchMapping:
        for item in pattern.elements:
            given = UNKNOWN
            if subject.kind == THING:
                given = subject
            elif subject.kind == DICT and type(item.key) is cst.SimpleString:
                given = subject.items.get(str(item.key.evaluated_value), UNKNOWN)
            _bind_pattern(frame, item.pattern, given)
        if pattern.rest is not None:
            bind(frame, pattern.rest, subject)
    elif type(pattern) is cst.MatchClass:
        for inner in (*(each.value for each in pattern.patterns), *(each.pattern for each in pattern.kwds)):
            _bind_pattern(frame, inner, UNKNOWN)
    elif type(pattern) is cst.MatchOr:
        for choice in pattern.patterns:
            _bind_pattern(frame, choice.pattern, subject)


def _function(frame: Frame, node: cst.FunctionDef) -> None:
    function = frame.scope.functions[node]
    for param in function.params:
        if param.default is not None:
            evaluate(frame, param.default)
    for decorator in node.decorators:
        evaluate(frame, decorator.decorator)
    if frame.env is not None:
        frame.env[function.name] = Value(FUNCTION, ref=function) if not _replaced(function.decorators) else UNKNOWN
    frame.nested.append(function)


def _replaced(decorators: list[str]) -> bool:
    """Whether a decorator may put something else in the function's place."""
    return any(
        d.rpartition(".")[2] in ("contextmanager", "fixture", "register", "asynccontextmanager") for d in decorators
    )


def _class(frame: Frame, node: cst.ClassDef) -> None:
    cls = frame.scope.classes[node]
    outer = frame.env
    if outer is None:
        return
    frame.env = dict(outer)
    execute_block(frame, node.body)
    if frame.env is not None:
        for name, value in frame.env.items():
            if outer.get(name) is value or "." in name or "[" in name:
                continue
            if value.kind not in (FUNCTION, CLASS):
                cls.attrs.setdefault(name, without_place(value) if name in _fields(node) else value)
                cls.attrs_of_class.add(name)
            elif isinstance(value.ref, Function) and value.ref.cls is cls:
                cls.methods.setdefault(name, value.ref)  # __call__ = encode
    frame.env = outer
    outer[cls.name] = Value(CLASS, ref=cls)


def _fields(node: cst.ClassDef) -> set[str]:
    """Names of a class that a decorator or a base may take for fields, with what is assigned as their default."""
    if not node.decorators and not node.bases:
        return set()
    found: set[str] = set()
    for field in annotated(node):
        _heads(field.target, found)
    return found


def _import(frame: Frame, node: cst.Import | cst.ImportFrom) -> None:
    if frame.env is not None:
        for alias, name in imported(node):
            frame.env[alias] = frame.flow.named(name)


def _delete(frame: Frame, node: cst.Del) -> None:
    for target in targets_in(node.target):
        if type(target) is not cst.Name:  # a name is not read
            evaluate(frame, target)
        if isinstance(target, cst.Subscript):
            held = frame.flow.value(target.value)
            if held.kind == LIST:
                frame.change(held, frame.key(target.value), held.but(ref=None))  # del steps[0]
        key = frame.key(target)
        if key is not None and frame.env is not None:
            frame.env.pop(key, None)
            frame.forget(key)


def _assert(frame: Frame, node: cst.Assert) -> None:
    frame.truth_tested(node.test, evaluate(frame, node.test))
    narrow(frame, node.test, True)  # assert isinstance(x, torch.LongTensor), whose tensors are on the host
    if frame.role == CONSTRUCTOR and not frame.conditional:
        _assert_of_attribute(frame, node.test)
    if node.msg is not None:
        frame.dead += 1
        evaluate(frame, node.msg)
        frame.dead -= 1


def _assert_of_attribute(frame: Frame, test: cst.BaseExpression) -> None:
    """``self.bands = bands; assert bands is None``: what was stored is nothing, too."""
    name = test.left.value if type(test) is cst.Comparison and type(test.left) is cst.Name else None
    if name is None or frame.env is None or frame.cls is None or frame.env.get(name) is not NOTHING:
        return
    if frame.function is None or name in frame.function.assigned:
        return
    for attr, stores in frame.cls.stores.items():
        statement, _, function = stores[0]
        given = statement.value if type(statement) is cst.Assign else None
        if len(stores) == 1 and function is frame.function and type(given) is cst.Name and given.value == name:
            frame.cls.attrs[attr] = frame.env[f"self.{attr}"] = NOTHING


_HANDLERS: dict[type, Callable[[Frame, Any], None]] = {
    cst.Expr: _expression,
    cst.Assign: _assign,
    cst.AnnAssign: _annotated,
    cst.AugAssign: _augmented,
    cst.Return: _return,
    cst.Raise: _raise,
    cst.Break: _break,
    cst.Continue: _continue,
    cst.If: _if,
    cst.For: _for,
    cst.While: _while,
    cst.With: _with,
    cst.Try: _try,
    cst.TryStar: _try,
    cst.Match: _match,
    cst.FunctionDef: _function,
    cst.ClassDef: _class,
    cst.Import: _import,
    cst.ImportFrom: _import,
    cst.Del: _delete,
    cst.Assert: _assert,
}
