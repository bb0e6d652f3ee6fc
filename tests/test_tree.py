"""The walk over a tree, against LibCST's own idea of what a node holds."""

import sys

import libcst as cst
import pytest

from devlint import rule, tree
from devlint.source import Source

# Everything LibCST can parse that holds code in a field of its own.
SAMPLE = b'''\
"""doc"""
from __future__ import annotations
import a.b as c, d
from . import (e as f, g)
from h import *

@decorated.by(1)
class A(B, *bases, metaclass=M, **options):
    x: int = 1
    y: str

async def f(p, /, q: int = 2, *args: T, r, s=3, **kwargs) -> "R":
    global g1, g2
    async for i, [j, *k] in (await it()):
        yield i
        yield from j
        continue
    else:
        pass
    async with open(a) as b, c: break_ = ...
    return [z async for z in y if z if not z for w in z], {m: n for m in n}, {o for o in o}, (l for l in l)

def only_keywords(*, key=1): nonlocal_ = lambda u, *v, w=1, **t: (u, *v)

if (n := 10) > 5 >= 3 and not x or y is not None and z not in t:
    a[1], a[1:2], a[::3, ...], a[*b] = -1, ~2, +3, 4j
elif a if b else c:
    x += 1 + a; x @= 2; x //= 3
else:
    del a, b.c
while x < 1.5:
    break
for i in {**a, "b": 1}, {*c, 2}, [*d]:
    assert i, "message" f"{i!r:>{width}} {i=}" 'more'
try:
    raise E(1) from e
except (E, F) as error:
    raise
except G:
    pass
else:
    pass
finally:
    pass
try:
    pass
except* H as group:
    pass
with (open(a) as b, open(c)):
    print(*args, sep="", **kwargs)
match subject, 1:
    case [1, *rest] | (2, _) if guard:
        pass
    case {"key": value, **others} | {}:
        pass
    case Point(0, y=1 | 2) as point:
        pass
    case None | -1 | "s" | a.b | _:
        pass
    case [*_]:
        pass
def outer():
    nonlocal v
    v = b"bytes"
def generic[T: int = str, *Ts, **P](x: T) -> T: ...
class Generic[T]: ...
type Alias[T] = list[T]
'''

TRIVIA = (
    cst.BaseParenthesizableWhitespace, cst.EmptyLine, cst.Newline, cst.TrailingWhitespace, cst.Comment, cst.Comma,
    cst.Semicolon, cst.Dot, cst.Colon, cst.AssignEqual, cst.LeftParen, cst.RightParen, cst.LeftSquareBracket,
    cst.RightSquareBracket, cst.LeftCurlyBrace, cst.RightCurlyBrace, cst.BaseBinaryOp, cst.BaseBooleanOp,
    cst.BaseUnaryOp, cst.BaseCompOp, cst.BaseAugOp, cst.Asynchronous, cst.ParamSlash,
)  # fmt: skip


def all_nodes(node: cst.CSTNode) -> set[cst.CSTNode]:
    found: set[cst.CSTNode] = set()
    stack = [node]
    while stack:
        node = stack.pop()
        if not isinstance(node, TRIVIA):
            found.add(node)
            stack += node.children
    return found


@pytest.fixture(scope="module")
def source() -> Source:
    return Source(SAMPLE, "sample.py")


def test_the_walk_reaches_every_node_that_holds_code_and_no_other(source: Source) -> None:
    reached = {node for nodes in source.nodes.values() for node in nodes}
    wanted = all_nodes(source.module)
    assert {type(n).__name__ for n in wanted - reached} == set()
    assert {type(n).__name__ for n in reached - wanted} == set()


def test_the_sample_holds_every_class_of_the_table(source: Source) -> None:
    newer = {"LazyImport", "LazyImportFrom", "StarredDictComp", "TemplatedString", "TemplatedStringExpression"}
    missing = set(tree.CHILDREN) - {kind.__name__ for kind in source.nodes}
    assert missing <= newer


def test_every_field_of_the_table_exists() -> None:
    for name, fields in tree.CHILDREN.items():
        kind = getattr(cst, name, None)
        if kind is not None:
            assert set(fields) <= set(kind.__dataclass_fields__), name


def test_template_strings_are_walked() -> None:
    if not hasattr(cst, "TemplatedString"):
        pytest.skip("this LibCST does not know template strings")
    source = Source(b'x = t"{a!r:>{width}} b"\n', "t.py")
    assert [n.value for n in source.nodes_named("Name") if isinstance(n, cst.Name)] == ["x", "a", "width"]


def test_every_node_but_the_root_has_its_parent(source: Source) -> None:
    nodes = [node for nodes in source.nodes.values() for node in nodes]
    assert len(nodes) == len(set(nodes)) == len(source.parents) + 1
    assert all(node in source.parents[node].children for node in nodes if node is not source.module)


def test_nodes_of_a_class_come_in_source_order(source: Source) -> None:
    for nodes in source.nodes.values():
        starts = [source.offsets(node)[0] for node in nodes]
        assert starts == sorted(starts), type(nodes[0]).__name__


def test_a_deep_tree_is_walked_without_recursion() -> None:
    source = Source(b"x = " + b" + ".join([b"y"] * 1500) + b"\n", "deep.py")
    assert sys.getrecursionlimit() < 1500
    assert len(source.nodes_named("Name")) == 1501


def test_a_hook_for_a_node_that_the_walk_steps_over_is_refused() -> None:
    with pytest.raises(rule.RuleError, match="visit_Comment would never be called"):
        type("ReadsComments", (rule.Rule,), {"group": "nursery", "visit_Comment": lambda self, node: None})


def test_every_name_that_may_be_hooked_is_a_node_that_the_walk_can_reach() -> None:
    leaves = {"Break", "Continue", "Ellipsis", "Float", "Imaginary", "Integer", "Name", "Pass", "SimpleString"}
    assert set(tree.CHILDREN) | leaves == tree.NODE_NAMES
