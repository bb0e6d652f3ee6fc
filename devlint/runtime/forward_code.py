"""What the source of a module's class says about its tensors, read only where something already looks wrong.

A tensor on another device than its module is no fault where the code brings it over when it is used. Where the source
cannot be read (code from C, or typed in without a file) the answer is the one that keeps devlint silent.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
import tokenize
from collections.abc import Iterator
from functools import lru_cache
from types import FunctionType, MethodType
from typing import Any, Final

import torch
from torch.nn.modules.module import _global_forward_pre_hooks

from devlint.runtime.site import Site

#: Methods that bring a tensor to another device, or may.
MOVES: Final = frozenset({"to", "cuda", "cpu", "xpu", "type_as", "copy_", "pin_memory"})
#: What is asked of a tensor without mixing it with others: where it is, what shape it has, its values for the host.
ASKS: Final = frozenset(
    {"device", "dtype", "shape", "size", "ndim", "dim", "numel", "item", "tolist", "numpy", "is_cuda", "get_device",
     "stride", "requires_grad", "grad", "data_ptr", "element_size", "nbytes", "layout"}
)  # fmt: skip
#: Functions that ask likewise.
HOST_CALLS: Final = frozenset(
    {"len", "isinstance", "hasattr", "id", "type", "int", "float", "bool", "is_tensor", "print", "range"}
)
#: Methods whose use of an attribute is not part of the work on the device.
SETUP: Final = frozenset({"__init__", "__new__", "__setstate__", "__getstate__", "__repr__", "extra_repr", "_apply"})
_REACH: Final = 400  # functions followed from one forward, before it counts as one that cannot be judged


def is_torchs_own(module: torch.nn.Module) -> bool:
    """Whether the module's class comes with torch: its forward moves nothing and its attributes are its own affair."""
    return type(module).__module__.partition(".")[0] == "torch"


def assigned(module: torch.nn.Module, name: str) -> Site | None:
    """The line of the class that assigns ``self.<name>``, where there is exactly one."""
    lines = [
        Site(function.__code__.co_filename, node.lineno + offset, function.__name__)
        for _, function in _methods(type(module))
        for node, offset in _nodes(function)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node, name)
    ]
    return lines[0] if len(lines) == 1 else None


def meets_others(module: torch.nn.Module, name: str, inside: bool = False) -> bool:
    """Whether a method uses ``self.<name>`` so that its values meet other tensors without being moved first.

    `inside`: it is a list or dict that holds the tensor; then a method that moves anything may well move that.
    """
    for method, function in _that_run(type(module)):
        nodes = [node for node, _ in _nodes(function)]
        if method in SETUP or (inside and any(_is_move(node) for node in nodes)):
            continue
        harmless = {id(child) for node in nodes for child in _harmless(node)}
        for node in nodes:
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Load)
                and _is_self(node, name)
                and id(node) not in harmless
            ):
                return True
    return False


def moves_tensors(model: torch.nn.Module) -> bool:
    """Whether the code that `model`'s forward may run moves tensors between devices, or cannot be read."""
    seen: set[Any] = set()
    for module in model.modules():
        if isinstance(module, (torch.nn.parallel.DataParallel, torch.nn.parallel.DistributedDataParallel)):
            return True  # both bring inputs to their devices
        if _has_foreign_hooks(module):
            return True
        if is_torchs_own(module) and "forward" not in vars(module):
            continue
        if isinstance(module, torch.jit.ScriptModule):
            return True
        forward = vars(module).get("forward", type(module).forward)
        if _reaches_move(forward, type(module), seen):
            return True
    return False


def function_moves(function: Any, cls: type = object) -> bool:
    """Whether `function`, of the class `cls`, may move or make tensors elsewhere, or cannot be read."""
    return _reaches_move(function, cls, set(), factories=True)


def _has_foreign_hooks(module: torch.nn.Module) -> bool:
    """Somebody's forward pre-hook, of `module` or of all modules, may move the inputs.

    Those of torch (weight norm, pruning) and of devlint do not.
    """
    own = ("torch.", "devlint.")
    for hook in (*_global_forward_pre_hooks.values(), *module._forward_pre_hooks.values()):
        where = getattr(hook, "__module__", None) or type(hook).__module__
        if not where.startswith(own):
            return True
    return False


def _reaches_move(function: Any, cls: type, seen: set[Any], factories: bool = False) -> bool:
    waiting = [function]
    while waiting:
        function = waiting.pop()
        if isinstance(function, MethodType):
            function = function.__func__
        function = inspect.unwrap(function) if callable(function) else function
        if not isinstance(function, FunctionType):
            return True
        if (function.__code__, cls) in seen:
            continue
        seen.add((function.__code__, cls))
        nodes = [node for node, _ in _nodes(function)]
        if not nodes or len(seen) > _REACH or any(_is_move(node) for node in nodes):
            return True
        if factories and any(isinstance(node, ast.keyword) and node.arg == "device" for node in nodes):
            return True
        for node in nodes:
            if isinstance(node, ast.Attribute):
                waiting += [found for _, found in _methods(cls, node.attr)]
            elif isinstance(node, ast.Name):
                found = function.__globals__.get(node.id)
                if isinstance(found, FunctionType) and not (found.__module__ or "").startswith("torch."):
                    waiting.append(found)
    return False


def _methods(cls: type, name: str | None = None) -> Iterator[tuple[str, FunctionType]]:
    """The functions that a class and its bases define, those of torch left out; only those called `name` if given."""
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] in ("torch", "builtins", "typing", "abc"):
            continue
        for key, value in list(vars(base).items()):
            if name is not None and key != name:
                continue
            value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            value = inspect.unwrap(value) if callable(value) else value
            if isinstance(value, FunctionType):
                yield key, value


def _that_run(cls: type) -> Iterator[tuple[str, FunctionType]]:
    """The functions of a class that are not overridden, or that what overrides them calls through ``super``."""
    overridden = set()
    for name, function in _methods(cls):
        if name not in overridden:
            yield name, function
            if "super" not in function.__code__.co_names:
                overridden.add(name)


@lru_cache(maxsize=2000)
def _parsed(code: Any) -> tuple[tuple[ast.AST, ...], int]:
    # Not `inspect.getsource`: it looks into every loaded module, which wakes up those that load themselves lazily.
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    try:
        text = textwrap.dedent("".join(inspect.getblock(lines)))
        return tuple(ast.walk(ast.parse(text))), code.co_firstlineno - 1
    except (SyntaxError, tokenize.TokenError):
        return (), 0  # not one that stands alone, as a lambda in the middle of a call


def _nodes(function: FunctionType) -> Iterator[tuple[ast.AST, int]]:
    nodes, offset = _parsed(function.__code__)
    return ((node, offset) for node in nodes)


def _is_self(node: ast.Attribute, name: str) -> bool:
    return node.attr == name and isinstance(node.value, ast.Name) and node.value.id == "self"


def _is_move(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    name = node.func.attr
    if name in ("as_tensor", "asarray"):
        return any(word.arg == "device" for word in node.keywords)
    if isinstance(receiver := _behind_subscripts(node.func.value), ast.Attribute) and _is_self(receiver, receiver.attr):
        return False  # what the module holds itself comes to the inputs
    return name in MOVES and not (name == "to" and _only_converts(node))


def _only_converts(call: ast.Call) -> bool:
    """``x.to(torch.float32)``, ``x.to(y.dtype)``, ``x.to(dtype=...)``: the device stays."""
    stays = {"dtype", "copy", "memory_format", "non_blocking"}
    return all(_is_dtype(argument) for argument in call.args) and all(word.arg in stays for word in call.keywords)


def _is_dtype(node: ast.expr) -> bool:
    if isinstance(node, ast.Name):
        return node.id.endswith("dtype")
    if not isinstance(node, ast.Attribute):
        return False
    named = getattr(torch, node.attr, None) if isinstance(node.value, ast.Name) else None
    return node.attr.endswith("dtype") or isinstance(named, torch.dtype)


def _harmless(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of `node` whose values it brings over, asks about, or uses as indices, which may stay on the host."""
    if isinstance(node, ast.Attribute) and (node.attr in ASKS or node.attr in MOVES):
        yield _behind_subscripts(node.value)
    elif isinstance(node, ast.Subscript):
        yield from ast.walk(node.slice)
    elif isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in HOST_CALLS:
            yield from node.args
    elif isinstance(node, ast.Compare) and all(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
        yield node.left


def _behind_subscripts(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Subscript):
        node = node.value
    return node
