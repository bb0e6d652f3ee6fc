"""Names in code: dotted paths, targets, imports, annotations."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from devlint import tree

_NUMBERS = frozenset({"int", "float"})
_TENSOR_TYPES = re.compile(
    r"^(torch\.|th\.|pt\.)?(Tensor|FloatTensor|LongTensor|BoolTensor|IntTensor|HalfTensor|ByteTensor)$"
    r"|^TensorType\[\]$"  # of torchtyping: TensorType["batch", "dim"]
)
#: Of jaxtyping: the first argument is the type of the array.
_OF_JAXTYPING = frozenset(
    "Bool Complex Complex64 Complex128 Float Float16 Float32 Float64 BFloat16 Inexact Int Int8 Int16 Int32 Int64 "
    "Integer Key Num Real Shaped UInt UInt8".split()
)
_DICTS = frozenset({"dict", "Dict", "Mapping", "MutableMapping", "OrderedDict", "defaultdict", "DefaultDict"})
_LISTS = frozenset({"list", "List", "Sequence", "Iterable", "Iterator", "Collection"})


def dotted(node: cst.BaseExpression | None) -> str:
    """``a.b.c`` as text; empty for anything else."""
    if type(node) is cst.Name:
        return node.value
    if type(node) is not cst.Attribute:
        return ""
    parts = []
    while type(node) is cst.Attribute:
        parts.append(node.attr.value)
        node = node.value
    if type(node) is not cst.Name:
        return ""
    parts.append(node.value)
    parts.reverse()
    return ".".join(parts)


def last_word(path: str) -> str:
    """``c`` of ``a.b.c``."""
    return path.rpartition(".")[2]


def called_name(call: cst.Call) -> str:
    """``load`` of ``torch.load(f)``, of ``load(f)`` and of ``stores[0].load(f)``; empty for ``makers[0](f)``."""
    return call.func.attr.value if type(call.func) is cst.Attribute else dotted(call.func)


def called_on(call: cst.Call) -> str:
    """``scaler`` of ``scaler.step(optimizer)``; empty for what is no method."""
    return dotted(call.func.value) if type(call.func) is cst.Attribute else ""


def switched(node: cst.BaseExpression) -> cst.BaseExpression:
    """``net`` of ``net.eval()``, ``net.half().eval()``: methods that give the module itself."""
    while type(node) is cst.Call and type(node.func) is cst.Attribute and node.func.attr.value in _SWITCHES:
        node = node.func.value
    return node


_SWITCHES = frozenset("eval train requires_grad_ half float double bfloat16 to cuda cpu share_memory".split())


def innermost_call(node: cst.CSTNode | None) -> cst.CSTNode | None:
    """``torch.ones(4)`` of ``torch.ones(4).to(device)``, and what is no call of a method as it is."""
    while type(node) is cst.Call and type(node.func) is cst.Attribute and type(node.func.value) is cst.Call:
        node = node.func.value
    return node


def only_target(statement: cst.CSTNode) -> cst.BaseExpression | None:
    """``w`` of ``w = x`` and of ``w: int = x``; nothing of ``v = w = x``."""
    if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
        return statement.targets[0].target
    return statement.target if isinstance(statement, cst.AnnAssign) else None


def target_names(target: cst.BaseExpression, into: set[str]) -> None:
    """Add the plain names that a target binds."""
    if type(target) is cst.Name:
        into.add(target.value)
    elif type(target) is cst.Tuple or type(target) is cst.List:
        for item in target.elements:
            target_names(item.value, into)
    elif type(target) is cst.StarredElement:
        target_names(target.value, into)


def names_in(node: cst.CSTNode | None) -> set[str]:
    """Every plain name in a piece of code, and the attribute names."""
    return {n.value for n in tree.walk(node) if isinstance(n, cst.Name)} if node is not None else set()


def targets_in(target: cst.BaseExpression) -> list[cst.BaseExpression]:
    """``a`` and ``b`` of ``a, b = f(x)`` or ``del a, b``; the target itself where there is one."""
    return [each.value for each in target.elements] if isinstance(target, cst.Tuple) else [target]


def names_bound(*targets: cst.BaseExpression) -> set[str]:
    """The plain names that targets bind."""
    found: set[str] = set()
    for target in targets:
        target_names(target, found)
    return found


def imported(node: cst.Import | cst.ImportFrom) -> list[tuple[str, str]]:
    """The names an import binds, each with its qualified name."""
    names = []
    if isinstance(node, cst.Import):
        for item in node.names:
            path = dotted(item.name)
            if item.asname is not None and isinstance(item.asname.name, cst.Name):
                names.append((item.asname.name.value, path))
            else:
                head = path.partition(".")[0]
                names.append((head, head))
        return names
    if isinstance(node.names, cst.ImportStar):
        return names
    package = imported_from(node)
    for item in node.names:
        name = dotted(item.name)
        qualified = f"{package}.{name}" if package and not package.endswith(".") else package + name
        alias = item.asname.name.value if item.asname is not None and isinstance(item.asname.name, cst.Name) else name
        names.append((alias, qualified))
    return names


def imported_from(node: cst.ImportFrom) -> str:
    """The module that names are imported from, with the dots of a relative import."""
    return "." * len(node.relative) + (dotted(node.module) if node.module is not None else "")


def annotated(node: cst.ClassDef) -> Iterator[cst.AnnAssign]:
    """The fields that a class body annotates: ``class Rays: origins: Tensor; count: int = 0``."""
    for line in node.body.body:
        for small in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if type(small) is cst.AnnAssign:
                yield small


def is_tensor_annotation(node: cst.Annotation | None) -> bool:
    """``Tensor``, ``torch.FloatTensor``, ``Optional[Tensor]``, ``Tensor | None``, also as a string.

    Not ``Tensor | int``: it may be a number, and is no tensor until something shows it.
    """
    if node is None:
        return False
    names = annotation_names(node.annotation)
    return any(_TENSOR_TYPES.match(name) for name in names) and not _NUMBERS.intersection(names)


def is_list_of_tensors(node: cst.Annotation | None) -> bool:
    """``list[Tensor]``, ``Sequence[torch.Tensor]``."""
    of = node.annotation if node is not None else None
    if type(of) is not cst.Subscript or dotted(of.value).rpartition(".")[2] not in _LISTS or len(of.slice) != 1:
        return False
    return _names_tensor(of.slice[0])


def is_dict_of_tensors(node: cst.Annotation | None) -> bool:
    """``dict[str, Tensor]``, ``Mapping[str, torch.Tensor] | None``."""
    of = node.annotation if node is not None else None
    while type(of) is cst.BinaryOperation and dotted(of.right) == "None":
        of = of.left
    if type(of) is cst.Subscript and dotted(of.value).rpartition(".")[2] == "Optional":
        inner = of.slice[0].slice
        of = inner.value if isinstance(inner, cst.Index) else None
    if type(of) is not cst.Subscript or dotted(of.value).rpartition(".")[2] not in _DICTS or len(of.slice) != 2:
        return False
    return _names_tensor(of.slice[1])


def _names_tensor(item: cst.SubscriptElement) -> bool:
    inner = item.slice
    return isinstance(inner, cst.Index) and any(_TENSOR_TYPES.match(name) for name in annotation_names(inner.value))


def annotation_names(node: cst.BaseExpression) -> list[str]:
    """The type names an annotation allows, ``Optional`` and unions opened; other generics count by their head."""
    if type(node) is cst.BinaryOperation:
        return annotation_names(node.left) + annotation_names(node.right)
    if type(node) is cst.Subscript:
        head = dotted(node.value).rpartition(".")[2]
        if head in _OF_JAXTYPING and node.slice and isinstance(node.slice[0].slice, cst.Index):
            return annotation_names(node.slice[0].slice.value)  # Float[Tensor, "batch dim"]
        if head in ("Optional", "Union", "Annotated"):
            inner = []
            for item in node.slice:
                if isinstance(item.slice, cst.Index):
                    inner += annotation_names(item.slice.value)
            return inner
        return [head + "[]"]
    if type(node) is cst.SimpleString:
        text = str(node.evaluated_value)
        found = []
        for part in re.sub(r"^(?:\w+\.)?Optional\[(.*)\]$", r"\1", text).split("|"):
            found.append(part.strip() if "[" not in part else part.partition("[")[0].strip() + "[]")
        return found
    name = dotted(node)
    return [name] if name else ["?"]
