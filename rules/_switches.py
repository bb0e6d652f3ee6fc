"""Flags that are off, or on, unless somebody says otherwise, and what stands under them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import libcst as cst

from devlint import tree
from devlint.flow.loops import leaves
from devlint.flow.names import called_name, dotted
from devlint.flow.scope import CONSTRUCTOR, Function
from devlint.rule import Rule
from devlint.rules._recurs import calls_of

#: Settings that are off, by how they are written.
_OFF = frozenset({"False", "None", "0", "0.", "0.0", '""', "''", "()", "[]", "{}"})
_NONE: frozenset[Function] = frozenset()
#: Names of flags that are on in some steps: `if self.should_log`, `if accelerator.sync_gradients`.
_BY_STEP = re.compile(r"sync_grad|should|(^|_)(due|first|last|end)($|_)")


def tests_above(rule: Rule, node: cst.CSTNode) -> list[tuple[cst.BaseExpression, cst.CSTNode, bool]]:
    """The tests in a function that a node is evaluated under: each with its branch, and whether it is to hold."""
    found = []
    child: cst.CSTNode = node
    above = rule.parent(child)
    while above is not None and not isinstance(above, cst.FunctionDef | cst.ClassDef):
        if isinstance(above, cst.If | cst.IfExp) and child is not above.test:
            found.append((above.test, child, child is above.body))
        child, above = above, rule.parent(above)
    return found


def tests_apart(
    rule: Rule, node: cst.CSTNode, other: cst.CSTNode
) -> list[tuple[cst.BaseExpression, cst.CSTNode, bool]]:
    """Of the tests that a node is evaluated under, those that another one does not stand under."""
    shared = {test for test, _, _ in tests_above(rule, other)}
    return [each for each in tests_above(rule, node) if each[0] not in shared]


def lines_above(rule: Rule, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The statements before a node in the block that it stands in, and in those around that, up to its function."""
    child, above = node, rule.parent(node)
    while above is not None and not isinstance(child, cst.FunctionDef):
        if isinstance(above, cst.IndentedBlock | cst.Module):
            for line in above.body:
                if line is child:
                    break
                yield line
        child, above = above, rule.parent(above)


def is_switched_off(
    rule: Rule, node: cst.CSTNode, *, default: bool = False, parameters: bool = False, seen: frozenset[Function] = _NONE
) -> bool:
    """Whether a node stands under a flag of its function or object that is false unless somebody says otherwise,
    which the file never does; with ``default=True``, in the other branch of a flag that is ``True``. So does what only
    such code calls.

    ``parameters``: those of any function count, and nothing else does. Otherwise those of public functions do not,
    since other files may call these.
    """
    # def __init__(self, size, weighted=False): self.weighted = weighted   and then   if self.weighted: ...
    function = rule.flow.function(node)
    if function is None or function in seen:
        return False
    under = tests_above(rule, node)
    # if self.mask is not None: ...   but for a parameter: def step(self, x, mask=None) is there for who has one
    asked = [(test, holds) for test, _, holds in under] + [(test, False) for test in _left_before(rule, node)]
    options = (path for test, holds in asked if not (default or parameters) for path in _options(test, holds))
    return (
        any(
            _keeps(rule, function, dotted(flag), default, parameters)
            for test, _, holds in under
            if holds != default
            for flag in (_all_asked(test) if holds else [test])
        )
        or any(_keeps(rule, function, path, default, parameters) for path in options)
        or (_is_private(function) and _is_called_so(rule, function, default, parameters, seen | {function}))
    )


def flags_of(tests: Iterable[tuple[cst.BaseExpression, bool]]) -> list[tuple[cst.BaseExpression, bool]]:
    """The conditions that tests are made of, each with whether it is to hold: `verbose` and `quiet` of
    `if verbose and not quiet`."""
    found = []
    for test, holds in tests:
        for part in _all_asked(test) if holds else [test]:
            if isinstance(part, cst.UnaryOperation) and isinstance(part.operator, cst.Not):
                found.append((part.expression, not holds))
            else:
                found.append((part, holds))
    return found


def may_be_on(rule: Rule, flag: cst.BaseExpression, *, wanted: bool) -> bool:
    """Whether a condition is a plain flag that nothing shows to be the other way round unless somebody says so."""
    path = dotted(flag)
    name = path.rpartition(".")[2]
    if not name or _BY_STEP.search(name):
        return False
    other = _OFF if wanted else {"True"}
    return not any(default in other for default in _defaults(rule, flag, name))


def is_limit_off(rule: Rule, test: cst.BaseExpression) -> bool:
    """Whether a test asks for a number that is none, zero or negative unless somebody says otherwise: `if limit > 0`,
    `if args.limit is not None`."""
    if isinstance(test, cst.Comparison):
        test = test.left
    if not isinstance(test, cst.Attribute):
        return False  # def step(self, x, limit=None): ...   is there for others to call, who give one
    known = list(_defaults(rule, test, test.attr.value))
    if known:
        return all(default in _OFF or default.startswith("-") for default in known)
    project, name = rule.flow.project, test.attr.value
    if project is None or project.some_file_says(f"gives {name}") is not False:
        return False
    return project.some_file_says(f"unset {name}") is True


def _defaults(rule: Rule, flag: cst.BaseExpression, name: str) -> Iterator[str]:
    """What a flag is by default: a parameter of its function, or one of a constructor, a field or an option of that
    name."""
    function = rule.flow.function(flag)
    if isinstance(flag, cst.Name):
        functions = [function] if function is not None else []
    else:
        functions = [f for f in rule.flow.scope.functions.values() if f.role == CONSTRUCTOR]
    for each in functions:
        yield from (rule.code(p.default) for p in each.params if p.name.value == name and p.default is not None)
    if isinstance(flag, cst.Name):
        return
    for field in rule.source.nodes_of(cst.AnnAssign):  # show: bool = False
        if dotted(field.target) == name and field.value is not None:
            yield rule.code(field.value)
    for call in rule.source.nodes_of(cst.Call):
        if called_name(call) not in ("add_argument", "add_option"):
            continue
        given = {arg.keyword.value: rule.code(arg.value) for arg in call.args if arg.keyword is not None}
        options = [rule.code(arg.value).strip("\"'-").replace("-", "_") for arg in call.args if arg.keyword is None]
        if name in options or given.get("dest", "").strip("\"'") == name:
            stores = given.get("action", "").strip("\"'")
            yield given.get("default", {"store_true": "False", "store_false": "True"}.get(stores, "None"))


def _is_called_so(rule: Rule, function: Function, default: bool, parameters: bool, seen: frozenset[Function]) -> bool:
    """Whether whatever mentions a function stands under such a flag: `if self.weighted: x = self._weigh(x)`."""
    mentions = [
        name
        for name in rule.source.nodes_of(cst.Name)
        if name.value == function.name and rule.parent(name) is not function.node
    ]
    return bool(mentions) and all(
        is_switched_off(rule, name, default=default, parameters=parameters, seen=seen) for name in mentions
    )


def _is_private(function: Function) -> bool:
    return function.name.startswith("_") and not function.name.endswith("__")


def _all_asked(test: cst.BaseExpression) -> list[cst.BaseExpression]:
    """`self.weighted` and `x` of `self.weighted and x`."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        return [*_all_asked(test.left), *_all_asked(test.right)]
    return [test]


def _left_before(rule: Rule, node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """The tests that end a function above a node where they hold: `if self.rate == 0: return x`."""
    for line in lines_above(rule, node):
        if isinstance(line, cst.If) and line.orelse is None and leaves(line.body.body[-1]):
            yield line.test


def _options(test: cst.BaseExpression, holds: bool) -> Iterator[str]:
    """What has to be given for a test to hold, or not to: `self.mask` of `self.mask is not None`, and `self.rate` of
    `self.rate == 0 or not self.training`, which is not to hold."""
    for part in _all_asked(test) if holds else _all_refused(test):
        if isinstance(part, cst.Comparison) and len(part.comparisons) == 1:
            operator, other = part.comparisons[0].operator, part.comparisons[0].comparator
            asks = (cst.IsNot, cst.NotEqual) if holds else (cst.Is, cst.Equal)
            if isinstance(operator, asks) and (dotted(other) == "None" or _is_zero(other)):
                yield dotted(part.left)


def _all_refused(test: cst.BaseExpression) -> list[cst.BaseExpression]:
    """`self.rate == 0` and `x is None` of `self.rate == 0 or x is None`."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.Or):
        return [*_all_refused(test.left), *_all_refused(test.right)]
    return [test]


def _is_zero(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Integer | cst.Float) and node.evaluated_value == 0


def _keeps(rule: Rule, function: Function, flag: str, default: bool, parameters: bool) -> bool:
    """Whether a parameter, or an attribute that the constructor sets to one, has that default and is never given; or
    the constructor sets it to that, and nothing sets it again."""
    cls = function.cls
    if flag in function.param_names and flag not in function.assigned:
        # def posterior(self, x, noisy=False): ...   is there for others to call, who may say `noisy=True`
        return (_is_private(function) or parameters) and not _may_be_set(rule, function, flag, default)
    if parameters or cls is None or not flag.startswith("self.") or flag.count(".") != 1:
        return False
    methods = [m for owner in {*cls.lineage, *cls.descendants} for m in owner.methods.values()]
    given = [(m, value) for m in methods for value in _given_to(rule, m, flag)]
    if len(given) != 1 or given[0][0].role != CONSTRUCTOR:
        return False
    if any(
        isinstance(n, cst.Assign) and not sets(n, flag) and dotted(n.targets[0].target).endswith(flag[4:])
        for n in rule.source.nodes_of(cst.Assign)
    ):
        return False  # net.weighted = True
    setter, value = given[0]
    # self.weighted = False   and nothing else, or what the constructor was handed
    return _is(rule, value, default) or not _may_be_set(rule, setter, dotted(value), default)


def _given_to(rule: Rule, method: Function, path: str) -> Iterator[cst.BaseExpression]:
    """What a method gives an attribute for a value: `self.mask = mask`, `self.register_buffer("mask", mask)`."""
    moves = {f"{path}.{move}" for move in ("to", "cuda", "cpu")}
    for node in tree.walk(method.node.body):
        if isinstance(node, cst.Assign):
            # self.mask, self.scale = pair;   but not   def cuda(self): self.mask = self.mask.cuda()
            if any(path in _bound(each.target) for each in node.targets) and not (
                isinstance(node.value, cst.Call) and dotted(node.value.func) in moves
            ):
                yield node.value
        elif isinstance(node, cst.AugAssign | cst.AnnAssign) and dotted(node.target) == path and node.value is not None:
            yield node.value
        elif isinstance(node, cst.Call) and dotted(node.func) == "self.register_buffer":
            name, *given = [arg.value for arg in node.args]
            if rule.code(name).strip("\"'") == path[5:]:
                yield from given[:1]


def _bound(target: cst.BaseExpression) -> set[str]:
    """The paths that are bound: `self.mask` and `self.scale` of `self.mask, self.scale = pair`."""
    if isinstance(target, cst.Tuple | cst.List):
        return {path for each in target.elements for path in _bound(each.value)}
    return {dotted(target)}


def sets(assign: cst.Assign, path: str) -> bool:
    """Whether an assignment binds a path."""
    return any(dotted(target.target) == path for target in assign.targets)


def is_left_out(rule: Rule, function: Function, name: str) -> bool:
    """Whether a parameter is `None` by default, and all calls of the file leave it so, as far as they are known."""
    # def decode(self, x, marks=None): ...   and only   self.decode(x, marks=marks)   of such a `marks`
    position = next((n for n, p in enumerate(function.positional) if p.name.value == name), len(function.positional))
    given_before = position - function.takes_self
    calls = calls_of(rule.flow, function)
    return (
        bool(calls)
        and all(sum(arg.keyword is None for arg in call.args) <= given_before for call in calls)
        and not _may_be_set(rule, function, name, default=False)
    )


def _may_be_set(rule: Rule, function: Function, name: str, default: bool, seen: frozenset[Function] = _NONE) -> bool:
    """Whether a parameter has another default, or a call hands it something else."""
    param = function.param(name)
    if param is None or param.default is None or not _is(rule, param.default, default):
        return True
    # net = Head(4, True)   and not   def step(self, x, weighted=False), which is handed `self` besides
    enough = next((n for n, p in enumerate(function.positional, start=not function.takes_self) if p is param), None)
    # Head(4, True)  says nothing of `def shift(self, x, upper=False)`
    builds = function.cls is not None and function.role == CONSTRUCTOR
    names = {function.name, function.cls.name if builds and function.cls is not None else function.name}
    for call in rule.source.nodes_of(cst.Call):
        if _is_of_another(rule, function, call, names):
            continue
        given = [a.value for a in call.args if a.keyword is not None and a.keyword.value == name]
        # nn.Linear(4, width)  says nothing of a class of the file that is called `Linear`, too
        if called_name(call) in names and not rule.flow.name_of(call).startswith("torch."):
            if not given and any(arg.star for arg in call.args):
                return True  # Head(*sizes)
            unnamed = [arg.value for arg in call.args if arg.keyword is None]
            given += unnamed[enough - 1 : enough] if enough else []
        given = [value for value in given if not _is(rule, value, default)]
        if not all(_hands_on(rule, value, default, seen | {function}) for value in given):
            return True
    return False


def _is_of_another(rule: Rule, function: Function, call: cst.Call, names: set[str]) -> bool:
    """Whether a call is of another class or function of the file, which has an option of that name itself, and hands
    nothing on: `Tail(rate=0.5)` says nothing of `Head`, unless that is a base of it."""
    called = call.func.value if isinstance(call.func, cst.Name) else ""
    if not called or called in names:
        return False
    others = [cls for cls in rule.flow.scope.classes.values() if cls.name == called]
    if others:
        return all(function.cls is None or function.cls not in cls.lineage for cls in others)
    return called in rule.flow.scope.function_names


def _is(rule: Rule, value: cst.BaseExpression, default: bool) -> bool:
    """Whether a setting is written out as on, or as off: `False`, `None`, `0`, `""`."""
    return rule.code(value) == "True" if default else rule.code(value) in _OFF


def _hands_on(rule: Rule, value: cst.BaseExpression, default: bool, seen: frozenset[Function]) -> bool:
    """`def __init__(self, weighted=False): self.head = Head(4, weighted)`, of a parameter that nobody sets either."""
    caller, name = rule.flow.function(value), dotted(value)
    if caller is None or name not in caller.param_names or name in caller.assigned:
        return False
    return caller in seen or not _may_be_set(rule, caller, name, default, seen)
