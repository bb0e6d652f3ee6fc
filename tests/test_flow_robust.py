"""The flow follows any program to its end, in work that grows with the program and not with what it would do.

Work is counted, not timed: expressions evaluated and values made.
"""

from __future__ import annotations

import ast
import itertools
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import libcst as cst
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devlint import tree
from devlint.flow import Flow, expressions
from devlint.flow.place import HOST, UNKNOWN_PLACE
from devlint.flow.value import INSTANCE, Value, join
from devlint.source import Source, deep_recursion

#: Loops are followed several times and inner loops again each time, up to a depth; beyond this factor, work explodes.
WORK_PER_NODE = 25
START = "import functools\nimport torch\nfrom torch import nn\n"


@contextmanager
def counted() -> Iterator[list[int]]:
    """Counts the expressions that are evaluated and the values that are made."""
    work = [0]
    make, copy = Value.__init__, Value.but

    def counting(function: Any) -> Any:
        def count(*args: Any, **kwargs: Any) -> Any:
            work[0] += 1
            return function(*args, **kwargs)

        return count

    handlers = {kind: counting(handler) for kind, handler in expressions._HANDLERS.items()}
    with (
        mock.patch.object(Value, "__init__", counting(make)),
        mock.patch.object(Value, "but", counting(copy)),
        mock.patch.dict(expressions._HANDLERS, handlers),
    ):
        yield work


def follow(code: str) -> tuple[Flow, float]:
    """The flow of a program, and the work done for each node of it."""
    with deep_recursion():
        source = Source((START + code).encode(), "program.py")
        with counted() as work:
            flow = Flow(source)
        nodes = sum(1 for _ in tree.walk(source.module))
    return flow, work[0] / nodes


# Programs of any shape -----------------------------------------------------------------------------------------------

NAMES = ("x", "y", "model", "device", "items", "self", "torch", "f", "g", "A", "B", "loader")
LEAVES = (
    *NAMES,
    "None",
    "True",
    "0",
    "'cuda'",
    "'cpu'",
    "...",
    "torch.zeros(2)",
    "torch.device('cuda')",
    "[]",
    "{}",
    "()",
)
EXPRESSIONS = (
    "{0}.to({1})",
    "{0}.cuda()",
    "{0}.cpu()",
    "{0}.x",
    "{0}.device",
    "{0}.data",
    "{0}[{1}]",
    "{0}[{1}:{2}, None]",
    "{0}({1})",
    "{0}({1}, *{2}, device={0}, **{1})",
    "{0} + {1}",
    "{0} @ {1}",
    "-{0}",
    "not {0}",
    "{0} and {1} or {2}",
    "{0} | {1}",
    "{0} if {1} else {2}",
    "{0} < {1} <= {2}",
    "{0} is None",
    "{0} in {1}",
    "({0}, {1})",
    "({0}, *{1})",
    "[{0}, {1}]",
    "{{'a': {0}, 'b': {1}, **{2}}}",
    "{{{0}, {1}}}",
    "[{0} for x in {1} if {2}]",
    "[{0} for x in {1} for y in {2}]",
    "{{x: {0} for x, y in {1}}}",
    "list({0} for i in {1})",
    "lambda x, *y, device={0}: {1}",
    "(lambda f: f({0}))({1})",
    "functools.partial({0}, {1})",
    "torch.cat([{0}, {1}])",
    "torch.stack({0})",
    "torch.zeros(2, device={0})",
    "torch.as_tensor({0})",
    "nn.Linear(2, 2)({0})",
    "nn.Sequential({0}, {1})",
    "nn.Parameter({0})",
    "{0}.append({1})",
    "{0}.update({1})",
    "{0}.update({1}, x={2})",
    "{0}.setdefault('a', {1})",
    "{0}.pop({1}, {2})",
    "{0}.items()",
    "{0}.numpy()",
    "{0}.item()",
    "{0}.forward({1})",
    "f'{{{0}}} {{{1}:{{{2}}}}}'",
    "(y := {0})",
    "getattr({0}, 'device', {1})",
    "super().forward({0})",
    "enumerate(zip({0}, {1}))",
    "map({0}, {1})",
    "next(iter({0}))",
    "sum({0})",
    "torch.where({0}, {1}, {2})",
    "{0}.backward()",
    "torch.optim.Adam({0}.parameters())",
    "torch.utils.data.DataLoader({0}, pin_memory={1})",
    "torch.load({0}, map_location={1})",
    "accelerator.prepare({0}, {1})",
)
SIMPLE = (
    "{0}",
    "x = {0}",
    "x = y = {0}",
    "x, *y = {0}",
    "(x, y), items = {0}",
    "x: torch.Tensor = {0}",
    "y: int",
    "x += {0}",
    "items[{0}] = {1}",
    "items[0].x = {0}",
    "self.x['a'] = {0}",
    "self.items[{0}] = {1}",
    "x.data = {0}",
    "del items[{0}]",
    "self.x = {0}",
    "self.x += {0}",
    "self.model = {0}",
    "A.x = {0}",
    "model = {0}",
    "device = {0}",
    "torch = {0}",
    "f = {0}",
    "del x",
    "del items[0], self.x",
    "assert {0}, {1}",
    "return {0}",
    "raise {0} from {1}",
    "break",
    "continue",
    "pass",
    "global x, model",
    "import torch as y",
    "from torch import *",
    "yield {0}",
    "yield from {0}",
    "exec({0})",
    "setattr(self, 'x', {0})",
    "setattr(self, x, {0})",
    "self.to({0})",
    "self.register_buffer('x', {0})",
    "torch.set_default_device({0})",
    "model.load_state_dict({0})",
    "reveal_device({0})",
)
COMPOUND = (
    "if {0}:",
    "if {0}:|elif {1}:|else:",
    "for x in {0}:",
    "for i, (x, y) in {0}:|else:",
    "while {0}:",
    "while True:",
    "while {0}:|else:",
    "with {0}:",
    "with {0} as x, {1} as (y, items):",
    "with torch.device({0}):",
    "with torch.no_grad():",
    "try:|finally:",
    "try:|except ValueError as x:|else:|finally:",
    "def f(x, device={0}, *items, y: torch.Tensor, **g):",
    "def g(self, model, x=None):",
    "async def f(x):",
    "class A:",
    "class A(nn.Module):",
    "class B(A, nn.Module):",
    "class A(B):",
    "def forward(self, x):",
    "def __init__(self, model, device='cpu'):",
    "@property\ndef x(self):",
    "@staticmethod\ndef f(x):",
    "@torch.no_grad()\ndef g(x):",
    "@g\ndef f(x, y):",
    "match {0}:\n    case [x, *items] | (x, items) if {1}:|    case {{'a': y}}:|    case A(x, y=g) as f:|    case _:",
)

expression_texts = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.builds(
        lambda shape, parts: shape.format(*(f"({part})" for part in parts)),
        st.sampled_from(EXPRESSIONS),
        st.tuples(inner, inner, inner),
    ),
    max_leaves=6,
)


def _simple(shape: str, parts: tuple[str, ...]) -> list[str]:
    return [shape.format(*(f"({part})" for part in parts))]


def _compound(shape: str, parts: tuple[str, ...], bodies: list[list[list[str]]]) -> list[str]:
    lines: list[str] = []
    for position, head in enumerate(
        shape.format(*(f"({part})" for part in parts)).split("|    case" if "match" in shape else "|")
    ):
        if "match" in shape and position:
            head = "    case" + head
        last = head.splitlines()[-1]
        indent = " " * (len(last) - len(last.lstrip()) + 4)
        lines += head.splitlines()
        body = [line for statement in bodies[position % len(bodies)] for line in statement]
        lines += [indent + line for line in body or ["pass"]]
    return lines


three = st.tuples(expression_texts, expression_texts, expression_texts)
statements: st.SearchStrategy[list[str]] = st.recursive(
    st.builds(_simple, st.sampled_from(SIMPLE), three),
    lambda inner: st.builds(
        _compound, st.sampled_from(COMPOUND), three, st.lists(st.lists(inner, max_size=4), min_size=1, max_size=3)
    ),
    max_leaves=25,
)


def compiles(code: str) -> bool:
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True


@given(st.lists(statements.filter(lambda lines: compiles("\n".join(lines))), min_size=1, max_size=12))
@settings(max_examples=150, deadline=None)
def test_any_program_is_followed_in_bounded_work(program: list[list[str]]) -> None:
    flow, work = follow("\n".join(line for lines in program for line in lines) + "\n")
    assert work < WORK_PER_NODE
    for node, text in flow.describe():
        assert text and isinstance(node, cst.CSTNode)
    for kind in (cst.Call, cst.Name):
        for node in flow.source.nodes.get(kind, ()):
            flow.loop(node)
            flow.function(node)


# Shapes that grow ----------------------------------------------------------------------------------------------------


def nested(head: str, depth: int, body: str, innermost: str) -> str:
    """A function in which heads stand inside each other, each with a body."""
    lines = ["def f(x: torch.Tensor, y, device):", "    a0, b0 = x.to(device), 0"]
    for i in range(depth):
        lines += [textwrap.indent(head.replace("#", str(i)), "    " * (i + 1)), textwrap.indent(body, "    " * (i + 2))]
    return "\n".join([*lines, textwrap.indent(innermost, "    " * (depth + 1))]) + "\n"


def repeated(text: str, times: int, indent: str = "    ") -> str:
    return "".join(textwrap.indent(text.replace("#", str(i)).replace("@", str(i + 1)), indent) for i in range(times))


FUNCTION = "def f(x: torch.Tensor, y, device):\n"
#: Each time round, what the first holds is one name further.
ROTATION = "".join(f"a{i} = a{i - 1} if b{i - 1} else b{i - 1}\nb{i} = b{i - 1}\n" for i in range(9, 0, -1)).rstrip()
SHAPES = {
    "for loops 8 deep": nested("for i# in y:", 8, ROTATION, "x = x.to(device)"),
    "while loops 15 deep": nested("while y > #:", 15, ROTATION, "a0 = x.cpu()"),
    "loops in a row inside loops": nested(
        "for i# in y:", 2, ROTATION, repeated("for c# in y:\n    x = x + c#\n    a0 = a9\n", 50, "")
    ),
    "tries 15 deep": nested("try:", 15, "x = x.cpu()", "pass")
    + "".join(f"{'    ' * i}except ValueError:\n{'    ' * i}    x = x.to(device)\n" for i in range(15, 0, -1)),
    "200 ifs": FUNCTION + repeated("if y == #:\n    x = x.to(device)\n    v# = x\n", 200),
    "500 branches": FUNCTION + "    if y:\n        pass\n" + repeated("elif y == #:\n    v# = x = x.cpu()\n", 500),
    "1,000 statements": FUNCTION + repeated("v# = x.to(device) + #\n", 1000),
    "a try of 1,000 statements": FUNCTION
    + "    try:\n"
    + repeated("v# = x.to(device)\n", 1000, " " * 8)
    + "    except ValueError:\n        pass\n",
    "a dictionary of 2,000 tensors": "D = {"
    + repeated("'k#': torch.zeros(#),\n", 2000, "")
    + "}\nfor k in D:\n    x = D[k]\n",
    "a dictionary filled in 500 steps": FUNCTION + "    d = {}\n" + repeated("d['k#'] = x\n", 500),
    "a sum of 800 terms": "y = " + " + ".join(["x"] * 800) + "\n",
    "a tower of powers": "y = " + " ** ".join(["x"] * 300) + "\n",
    "300 conditional expressions": "y = " + "".join(f"x if y == {i} else " for i in range(300)) + "x\n",
    "brackets 90 deep": "y = " + "[" * 90 + "torch.zeros(2)" + "]" * 90 + "\nfor x in y:\n    x = x[0][0]\n",
    "a chain of 500 methods": "y = torch.zeros(2)" + ".abs()" * 500 + "\n",
    "tuples that double": FUNCTION + repeated("y = (y, y)\n", 60) + "    return y\nf(0, (torch.zeros(2), 1), 0)\n",
    "dictionaries that double": FUNCTION + repeated("y = {'a': y, 'b': y}\n", 60) + "    return y\n",
    "tuples that double on two ways": FUNCTION + repeated("if x:\n    y = (y, y)\nelse:\n    y = (y, x)\n", 60),
    "functions that call the one before twice": "def f0(x):\n    return x, x\n"
    + repeated("def f@(x):\n    return f#(x), f#(x)\n", 60, "")
    + "f60(torch.zeros(2))\n",
    "functions in a ring": repeated("def f#(x):\n    return f@(x) + f0(x) + g(x)\n", 300, "")
    + "def f300(x):\n    return f0(x)\n",
    "methods in a ring": "class A:\n" + repeated("def m#(self, x):\n    return self.m@(x) + self.m0(x)\n", 200),
    "lambdas that call the one before twice": "f0 = lambda x: x\n"
    + repeated("f@ = lambda x: (f#(x), f#(x))\n", 60, "")
    + "f60(torch.zeros(2))\n",
    "a lambda that calls itself": "f = lambda x: f(x) + 1\nf(torch.zeros(2))\ng = lambda f: f(f)\ng(g)\n",
    "partials of partials": "p = torch.zeros\n" + repeated("p = functools.partial(p, p)\n", 60, "") + "p()\n",
    "comprehensions 12 deep": "y = " + "[" * 12 + "x" + "".join(f" for a{i} in x]" for i in range(12)) + "\n",
    "a comprehension of 100 clauses": "y = [x" + "".join(f" for a{i} in x if a{i}" for i in range(100)) + "]\n",
    "functions 40 deep": "".join("    " * i + f"def f{i}(x):\n" for i in range(40)) + "    " * 40 + "return x\n",
    "100 bases": "class A0(nn.Module):\n    def forward(self, x):\n        return x\n"
    + repeated("class A@(A#):\n    def forward(self, x):\n        return super().forward(x)\n", 100, ""),
    "bases in a ring": "class A(A): pass\nclass B(C): pass\nclass C(B): pass\nB().x\nclass D(nn.Module):\n"
    "    @property\n    def q(self): return self.q\n    def f(self): return self.q\n",
    "diamonds of bases": "class A0(nn.Module): pass\n"
    + repeated("class B@(A#): pass\nclass A@(A#, B@): pass\n", 60, "")
    + "A60().x\n",
    "500 attributes": "class A(nn.Module):\n    def __init__(self):\n"
    + repeated("self.a# = torch.zeros(#)\n", 500, " " * 8)
    + "    def forward(self, x):\n"
    + repeated("x = x + self.a#\n", 500, " " * 8),
    "an alias for each of 100 changes": FUNCTION + "    y = []\n" + repeated("a# = y\na#.append(x)\n", 100),
    "modules in modules": "m0 = nn.Linear(2, 2)\n"
    + repeated("m@ = nn.Sequential(m#, m#)\n", 100, "")
    + "m100.cuda()\n",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_work_grows_with_the_program_only(shape: str) -> None:
    _, work = follow(SHAPES[shape])
    assert work < WORK_PER_NODE


RECEIVERS = ("{'a': x}", "{}", "[x]", "(x, y)", "{x}", "'a'", "x", "torch.zeros(2).cuda()", "nn.Linear(2, 2)", "None")
METHODS = tuple(
    sorted(name for kind in (dict, list, set, str, tuple) for name in dir(kind) if not name.startswith("_"))
)
ARGUMENTS = ("", "x", "x, y", "{}", "None", "a=x", "x, a=y", "*x", "**x", "x, **y", "0", "'a', x", "{'a': x}")


@pytest.mark.parametrize("receiver", RECEIVERS)
def test_any_method_of_a_container_is_followed_with_any_arguments(receiver: str) -> None:
    calls = (f"    r = {receiver}\n    r.{method}({given})\n" for method in METHODS for given in ARGUMENTS)
    follow("def f(x, y: torch.Tensor):\n" + "".join(calls))


PATHS = ("self.x", "x", "self.x.y", "x[0]", "self.a['k']")
CHANGES = (
    "{0}['a'] = y",
    "{0}[0] = y",
    "{0}[:] = [y]",
    "{0}[i] = y.cuda()",
    "{0}.update(a=y)",
    "{0}.update(y)",
    "{0}.pop(0)",
    "{0}.append(y)",
    "{0}.data = y",
    "del {0}[0]",
    "for v in {0}: v.data = v.cuda()",
    "for k in {0}: {0}[k] = {0}[k].cuda()",
    "put({0})",
)


@pytest.mark.parametrize("made", ["{'a': torch.zeros(2)}", "[torch.zeros(2)]", "{}", "[]", "(y,)", "y", "dict(a=y)"])
def test_a_container_is_followed_whatever_changes_it_under_whatever_path(made: str) -> None:
    constructor = f"    def __init__(self, y):\n        super().__init__()\n        self.x = {made}\n"
    code = "def put(b):\n    for k in b: b[k] = b[k].cuda()\n"
    for number, (path, change) in enumerate(itertools.product(PATHS, CHANGES)):
        changed = change.format(path)
        code += f"class A{number}(nn.Module):\n{constructor}    def f(self, x, y, i):\n        {changed}\n"
        code += f"class C{number}(nn.Module):\n{constructor}"
        code += f"    def f(self, x, y, i):\n        def hook():\n            {changed}\n        return hook\n"
        code += f"class B{number}(nn.Module):\n    def f(self, x, y, i):\n        {path} = {made}\n        {changed}\n"
    follow(code)


@pytest.mark.parametrize("code", ["", "\n", "# nothing\n", "class A: x: int\n", "f(*a, **b)\n", "type X = int\n"])
def test_small_and_odd_programs_are_followed(code: str) -> None:
    follow(code)


@pytest.mark.parametrize("items", [None, {}, {"device": HOST}, {"device": HOST, "rows": UNKNOWN_PLACE}])
@pytest.mark.parametrize("others", [None, {}, {"device": HOST}, {"rows": UNKNOWN_PLACE}])
def test_what_two_objects_of_a_class_both_keep_is_known_of_either(items: Any, others: Any) -> None:
    either = join(Value(INSTANCE, ref="Rows", items=items), Value(INSTANCE, ref="Rows", items=others))
    assert set(either.items or ()) == set(items or ()) & set(others or ())
