"""Which fields of a LibCST node hold code, and one fast walk over them.

LibCST's own ``visit`` rebuilds every node, and two thirds of the nodes are white space and commas.
This walk only reads, and steps over them. The table is explicit; a test compares it with ``.children``.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

#: Class name -> fields that hold code, in source order. Classes that are missing are leaves.
CHILDREN: dict[str, tuple[str, ...]] = {
    "AnnAssign": ("target", "annotation", "value"),
    "Annotation": ("annotation",),
    "Arg": ("keyword", "value"),
    "AsName": ("name",),
    "Assert": ("test", "msg"),
    "Assign": ("targets", "value"),
    "AssignTarget": ("target",),
    "Attribute": ("value", "attr"),
    "AugAssign": ("target", "operator", "value"),
    "Await": ("expression",),
    "BinaryOperation": ("left", "operator", "right"),
    "BooleanOperation": ("left", "operator", "right"),
    "Call": ("func", "args"),
    "ClassDef": ("decorators", "name", "type_parameters", "bases", "keywords", "body"),
    "CompFor": ("target", "iter", "ifs", "inner_for_in"),
    "CompIf": ("test",),
    "Comparison": ("left", "comparisons"),
    "ComparisonTarget": ("operator", "comparator"),
    "ConcatenatedString": ("left", "right"),
    "Decorator": ("decorator",),
    "Del": ("target",),
    "Dict": ("elements",),
    "DictComp": ("key", "value", "for_in"),
    "DictElement": ("key", "value"),
    "Element": ("value",),
    "Else": ("body",),
    "ExceptHandler": ("type", "name", "body"),
    "ExceptStarHandler": ("type", "name", "body"),
    "Expr": ("value",),
    "Finally": ("body",),
    "For": ("target", "iter", "body", "orelse"),
    "FormattedString": ("parts",),
    "FormattedStringExpression": ("expression", "format_spec"),
    "From": ("item",),
    "FunctionDef": ("decorators", "name", "type_parameters", "params", "returns", "body"),
    "GeneratorExp": ("elt", "for_in"),
    "Global": ("names",),
    "If": ("test", "body", "orelse"),
    "IfExp": ("body", "test", "orelse"),
    "Import": ("names",),
    "ImportAlias": ("name", "asname"),
    "ImportFrom": ("module", "names"),
    "IndentedBlock": ("body",),
    "Index": ("value",),
    "Lambda": ("params", "body"),
    "LazyImport": ("names",),
    "LazyImportFrom": ("module", "names"),
    "List": ("elements",),
    "ListComp": ("elt", "for_in"),
    "Match": ("subject", "cases"),
    "MatchAs": ("pattern", "name"),
    "MatchCase": ("pattern", "guard", "body"),
    "MatchClass": ("cls", "patterns", "kwds"),
    "MatchKeywordElement": ("key", "pattern"),
    "MatchList": ("patterns",),
    "MatchMapping": ("elements", "rest"),
    "MatchMappingElement": ("key", "pattern"),
    "MatchOr": ("patterns",),
    "MatchOrElement": ("pattern",),
    "MatchSequenceElement": ("value",),
    "MatchSingleton": ("value",),
    "MatchStar": ("name",),
    "MatchTuple": ("patterns",),
    "MatchValue": ("value",),
    "Module": ("body",),
    "NameItem": ("name",),
    "NamedExpr": ("target", "value"),
    "Nonlocal": ("names",),
    "Param": ("name", "annotation", "default"),
    "ParamSpec": ("name",),
    "Parameters": ("posonly_params", "params", "star_arg", "kwonly_params", "star_kwarg"),
    "Raise": ("exc", "cause"),
    "Return": ("value",),
    "Set": ("elements",),
    "SetComp": ("elt", "for_in"),
    "SimpleStatementLine": ("body",),
    "SimpleStatementSuite": ("body",),
    "Slice": ("lower", "upper", "step"),
    "StarredDictComp": ("value", "for_in"),
    "StarredDictElement": ("value",),
    "StarredElement": ("value",),
    "Subscript": ("value", "slice"),
    "SubscriptElement": ("slice",),
    "TemplatedString": ("parts",),
    "TemplatedStringExpression": ("expression", "format_spec"),
    "Try": ("body", "handlers", "orelse", "finalbody"),
    "TryStar": ("body", "handlers", "orelse", "finalbody"),
    "Tuple": ("elements",),
    "TypeAlias": ("name", "type_parameters", "value"),
    "TypeParam": ("param", "default"),
    "TypeParameters": ("params",),
    "TypeVar": ("name", "bound"),
    "TypeVarTuple": ("name",),
    "UnaryOperation": ("operator", "expression"),
    "While": ("test", "body", "orelse"),
    "With": ("items", "body"),
    "WithItem": ("item", "asname"),
    "Yield": ("value",),
}

# Operators carry no children of interest; the flow reads them from their parent.
_SKIPPED_FIELDS = frozenset({"operator"})

#: The same by class, without operators, and last first: as a stack takes them.
FIELDS: dict[type, tuple[str, ...]] = {
    getattr(cst, name): tuple(f for f in reversed(fields) if f not in _SKIPPED_FIELDS)
    for name, fields in CHILDREN.items()
    if hasattr(cst, name)
}

#: Names after ``visit_`` that a rule may hook.
NODE_NAMES = frozenset(CHILDREN) | {
    "Break", "Continue", "Ellipsis", "Float", "Imaginary", "Integer", "Name", "Pass", "SimpleString",
}  # fmt: skip

Parents = dict[cst.CSTNode, cst.CSTNode]
Nodes = dict[type, list[cst.CSTNode]]


def index(module: cst.Module) -> tuple[Parents, Nodes]:
    """One walk: the parent of every code node, and the nodes of each class in source order."""
    parents: Parents = {}
    nodes: Nodes = {}
    fields_of = FIELDS
    stack: list[cst.CSTNode] = [module]
    pop, push = stack.pop, stack.append
    while stack:
        node = pop()
        kind = type(node)
        seen = nodes.get(kind)
        if seen is None:
            nodes[kind] = [node]
        else:
            seen.append(node)
        fields = fields_of.get(kind)
        if fields is None:
            continue
        for field in fields:
            child = getattr(node, field)
            if child is None:
                continue
            if type(child) is tuple or type(child) is list:
                for item in reversed(child):
                    parents[item] = node
                    push(item)
            elif type(child) is not cst.MaybeSentinel:  # the rest are nodes; to ask that of abstract classes is slow
                parents[child] = node
                push(child)
    return parents, nodes


def sides(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """What an expression may be: one side of a choice (``a if x else b``) after the other, or the expression itself."""
    if isinstance(node, cst.IfExp):
        yield from sides(node.body)
        yield from sides(node.orelse)
    else:
        yield node


def walk(root: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The code nodes below and including ``root``, in source order."""
    fields_of = FIELDS
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        for field in fields_of.get(type(node), ()):
            child = getattr(node, field)
            if type(child) is tuple or type(child) is list:
                stack.extend(reversed(child))
            elif child is not None and type(child) is not cst.MaybeSentinel:
                stack.append(child)


def named(root: cst.CSTNode, name: str) -> list[cst.Name]:
    """The names below and including ``root`` that are this one, in source order."""
    return [node for node in walk(root) if isinstance(node, cst.Name) and node.value == name]


def words(root: cst.CSTNode) -> str:
    """The names and strings below and including ``root``, in source order: what is asked of them needs no code made."""
    return " ".join(node.value for node in walk(root) if isinstance(node, cst.Name | cst.SimpleString))
