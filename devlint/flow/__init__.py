"""Device flow: what each value of a file is, where it lives, and where that came from.

One abstract interpretation of the module body and of each function, under the hypothesis that the
target device is an accelerator. :class:`Flow` knows no rule: it gathers facts (moves, meetings, waits)
and answers questions about nodes; rules judge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

import libcst as cst

from devlint.flow import elsewhere, steps, waiting
from devlint.flow import torch_table as table
from devlint.flow.elsewhere import Elsewhere
from devlint.flow.facts import Facts, Move
from devlint.flow.frame import Env, Frame
from devlint.flow.loops import Loop, loop_of
from devlint.flow.names import dotted
from devlint.flow.place import HOST, SOMEWHERE, UNKNOWN_PLACE, Place
from devlint.flow.scope import CONSTRUCTOR, DEVICE_SIDE, Class, Function, Scope, is_module
from devlint.flow.statements import execute_block
from devlint.flow.value import (
    DATA,
    DEVICE,
    DICT,
    LIST,
    MODULE,
    NAME,
    NONE,
    OPTIMIZER,
    TENSOR,
    THING,
    TUPLE,
    UNKNOWN,
    UNKNOWN_KIND,
    Value,
    join,
    modules_in,
    render,
    substitute,
    tensor,
    without_place,
    written_elsewhere,
)
from devlint.index import Definition, Unit, View
from devlint.ledger import Basis, Fact
from devlint.outline import CLASS as CLASS_KIND
from devlint.outline import VARIABLE
from devlint.source import Source

__all__ = ["Flow", "Loop", "Place", "Value"]


@dataclass
class Summary:
    """What calling a function gives and does.

    ``constraints``: parameters whose places must coincide; ``perhaps``: on one way at least. ``indexed``: parameters,
    and those that index them. ``moved``: parameters that are modules, and where they are afterwards. ``tensors``:
    parameters taken to be tensors. ``captured``: what it read from around it. ``gives_data``: whether it gives numpy's
    or Python's values on one way at least.
    """

    returns: Value
    constraints: list[tuple[Place, Place]] = field(default_factory=list)
    perhaps: tuple[tuple[Place, Place], ...] = ()
    indexed: tuple[tuple[str, str], ...] = ()
    moved: dict[str, Place] = field(default_factory=dict)
    tensors: frozenset[str] = frozenset()
    captured: Env = field(default_factory=dict)
    gives_data: bool = False


class Flow:
    """The device flow of one file.

    ``project`` is what is around it: ``facts`` are what was asked of that, with its answers, and ``learned`` the nodes
    that needed it. ``around`` names what is bound around the source where that is a part of a file.
    """

    def __init__(
        self, source: Source, project: View | None = None, around: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.source, self.project = source, project
        self.unit: Unit | None = None  # the part of another file that it follows
        self.learned: dict[cst.CSTNode, Elsewhere] = {}
        self.values: dict[cst.CSTNode, Value] = {}
        self.facts = Facts()
        self.has_paths = False  # whether any environment binds a path such as `self.x`
        self.has_copies = False  # whether a copy to the host was ever begun without waiting
        self._named: dict[str, Value] = {}
        self._heirs: dict[tuple[Class, str], Class | None] = {}
        self._running: set[Function] = set()
        self.loops: dict[cst.CSTNode, Loop] = {}  # those that were asked for
        self._steps: frozenset[Function] | None = None
        self._reached: frozenset[Function] | None = None
        self.parts: dict[object, set[object]] = {}  # modules by identity, and those put into them
        self.bound_in_loops: dict[cst.CSTNode, set[str]] = {}
        self.lambdas: list[cst.Lambda] = []  # being called, the innermost last
        self.lambda_calls = 0
        self.scope = Scope(source, project, around)
        for cls in self.scope.classes.values():
            cls.home = self
        for function in self.scope.functions.values():
            function.home = self
        self.default_type_set = False
        self.default_place = self._redirected_default()
        self._environments: dict[Function, Env] = {}  # variables as functions leave them, for those inside
        self._module_env: Env = {}
        self._main = Frame(self, None, self._module_env, ())
        self._follow()

    # asked by rules -----------------------------------------------------------------------------

    @property
    def used(self) -> frozenset[Fact | Basis]:
        """What was asked of other files, and answered."""
        return frozenset(self.project.facts) if self.project is not None else frozenset()

    def value(self, node: cst.CSTNode) -> Value:
        """What an expression is; unknown where the flow did not come by."""
        return self.values.get(node, UNKNOWN)

    def reveal(self, node: cst.CSTNode) -> str:
        """What an expression is, in words."""
        return render(self.value(node))

    def move(self, node: cst.CSTNode) -> Move | None:
        """The device move that a call makes, if it surely makes one."""
        return self.facts.moves.get(node)

    def calls(self, *names: str) -> list[cst.Call]:
        """All calls of a function known by its qualified name."""
        # what is followed more than once, as a loop or an inherited method is, was noted each time
        return list(dict.fromkeys(node for name in names for node in self.facts.calls.get(name, ())))

    def name_of(self, call: cst.CSTNode | None) -> str:
        """The qualified name a call calls, where it is a function of an outside package."""
        return self.facts.names.get(call, "")  # type: ignore[call-overload]  # asking what it is costs more

    @cached_property
    def has_own_tensor(self) -> bool:
        """Whether `Tensor` is a class of the project, and none of torch's: ``from .tensor import Tensor``.

        For rules, which ask seldom: to ask at each annotation costs a twentieth of a run.
        """
        local = self.scope.class_names.get("Tensor")
        if local is not None:
            return not any(base.startswith("torch.") for base in local.bases)
        qualified = self.scope.imports.get("Tensor", "")
        if self.project is None or not qualified or qualified.startswith("torch."):
            return False
        definition = self.definition(qualified)
        is_class = definition is not None and definition.kind == CLASS_KIND
        return is_class and not any(base.startswith("torch.") for base in self.project.ancestry(qualified).outside)

    @cached_property
    def makers(self) -> list[cst.Call]:
        """The calls that make a tensor by themselves, in source order: of `table.MAKERS`."""
        return [call for call in self.source.nodes_of(cst.Call) if self.name_of(call) in table.MAKERS]

    def factory(self, node: cst.CSTNode | None) -> table.Factory | None:
        """The table's entry for a call that makes a tensor and obeys ``device=``."""
        return table.FACTORIES.get(self.name_of(node))

    def stores(self, cls: Class, name: str) -> list[tuple[cst.CSTNode, Value]]:
        """Every statement seen to set ``self.name``, with the value given, bases of the file included."""
        return [(statement, value) for owner in cls.lineage for statement, value, _ in owner.stores.get(name, ())]

    @property
    def module_names(self) -> frozenset[str]:
        """Names bound at the top level of the file."""
        return frozenset(self._module_env)

    def loop(self, node: cst.CSTNode) -> Loop | None:
        """The innermost loop around a node, within the same function."""
        return loop_of(self, node)

    def function(self, node: cst.CSTNode) -> Function | None:
        """The function a node stands in."""
        parents = self.source.parents
        current = parents.get(node)
        while current is not None and type(current) is not cst.FunctionDef:
            current = parents.get(current)
        return self.scope.functions.get(current) if current is not None else None

    def runs_each_step(self, node: cst.CSTNode) -> bool:
        """Whether each call of a module's ``forward`` or ``training_step`` evaluates a node."""
        function = self.function(node)
        if function is None or function.role != DEVICE_SIDE:
            return False
        return function in self.step_functions and steps.runs_each_time(self, function, node)

    @property
    def step_functions(self) -> frozenset[Function]:
        """The functions that run in each call of a module's ``forward`` or ``training_step``."""
        if self._steps is None:
            self._steps = steps.functions(self)
        return self._steps

    @property
    def reached_functions(self) -> frozenset[Function]:
        """The functions that a module's ``forward`` or ``training_step`` may run."""
        if self._reached is None:
            self._reached = steps.reached(self)
        return self._reached

    def describe(self) -> Iterator[tuple[cst.CSTNode, str]]:
        """Every expression the flow has an opinion on, with that opinion."""
        for node, value in self.values.items():
            text = render(value)
            if text != "unknown":
                yield node, text

    # asked while following ----------------------------------------------------------------------

    def named(self, qualified: str) -> Value:
        """The value of a name of another package or file."""
        value = self._named.get(qualified)
        if value is None:
            value = self._named[qualified] = self._variable(qualified) or Value(NAME, ref=qualified)
        return value

    def _variable(self, qualified: str) -> Value | None:
        """What a variable of another file holds, where that says more than its name."""
        definition = self.definition(qualified)
        if definition is None or definition.kind != VARIABLE:
            return None
        unit = self.followed(qualified)
        value = unit.flow.global_value(definition.name) if unit is not None else None
        if value is None or not (
            value.kind == TENSOR
            or (value.kind == DATA and value.text is not None)
            or (value.kind == DEVICE and value.place.kind in ("host", "fixed"))
        ):
            return None
        return elsewhere.value(value, None)

    def global_value(self, name: str) -> Value | None:
        """What a name of the top level holds in the end."""
        return self._module_env.get(name)

    def waits_elsewhere(self, part: Function | Class, *, needed: bool) -> bool:
        """Whether each call of a function, or of a module, of another file waits for the device."""
        unit = part.home.unit if part.home is not None else None
        if unit is None or self.project is None:
            return False
        if not unit.waits:
            again = self.project.unit(unit.definition, waits=True)
            if again is None:
                return False
            part = unit.counterpart(part, again)
        return part.waits.get(needed, False)

    def note_waits(self) -> None:
        """Find out what waits for the device while there is code to read: callers ask later."""
        for needed in (True, False):
            for cls in self.scope.classes.values():
                waiting.module_waits(self, cls, needed=needed)
            for function in self.scope.functions.values():
                waiting.waits_each_time(self, function, needed=needed)

    def waits_in(self, call: cst.Call) -> bool:
        """Whether what a call runs waits for the device each time, as far as its code is seen."""
        return waiting.call_waits(self, call)

    def drop_tree(self) -> None:
        """Forget the code, and what only those need who look at code: all that stays is what callers ask for."""
        empty = cst.SimpleStatementSuite(())
        for function in self.scope.functions.values():
            function.node = function.node.with_changes(body=empty)
        for cls in self.scope.classes.values():
            cls.node = cls.node.with_changes(body=empty)
            cls.stores.clear()
        self.facts = Facts()
        for nodes in (self.values, self.learned, self.loops, self.bound_in_loops, self._environments):
            nodes.clear()
        self.scope.functions, self.scope.classes = {}, {}
        self.source.forget()

    def let_go(self) -> None:
        """Undo the rings of what was learned: the tree is free at once, and no collector has to look through it."""
        for thing in (*self.scope.functions.values(), *self.scope.classes.values(), self.scope, self._main):
            vars(thing).clear()
        self.source.forget()
        vars(self).clear()

    def definition(self, qualified: str) -> Definition | None:
        """The definition in another file of the project that a name leads to."""
        return self.project.find(qualified) if self.project is not None else None

    def followed(self, qualified: str) -> Unit | None:
        """That definition, followed."""
        definition = self.definition(qualified)
        return self.project.unit(definition) if definition is not None and self.project is not None else None

    def built_or_called(self, qualified: str) -> Unit | None:
        """The function or class of another file that a call of this name calls, where it may say where anything is."""
        definition = self.definition(qualified)
        if definition is None or self.project is None:
            return None
        if (
            definition.kind == CLASS_KIND
            and not self.names_module(qualified)
            and not self.project.moves_itself(definition)
        ):
            return None
        return self.project.unit(definition)

    def names_module(self, qualified: str) -> bool:
        """Whether a name leads to a class of modules in another file."""
        if self.project is None or self.definition(qualified) is None:
            return False
        return is_module(self.project.ancestry(qualified).outside)

    def heir(self, cls: Class, name: str) -> Class | None:
        """The class of another file that ``cls`` has an attribute or method from."""
        if self.project is None:
            return None
        key = (cls, name)
        if key not in self._heirs:
            self._heirs[key] = None
            for base in [base for owner in cls.lineage for base in owner.project_bases]:
                holder = self.project.holder(base, name)
                if holder is not None:
                    unit = self.project.unit(holder)
                    self._heirs[key] = unit.cls if unit is not None else None
                    break
        return self._heirs[key]

    def attribute_of(self, cls: Class | None, name: str) -> Value | None:
        """What an attribute of a class's instances holds after construction, as stored."""
        if cls is None:
            return None
        if cls.home is not self and cls.home is not None:
            known = cls.home.attribute_of(cls, name)
            return elsewhere.value(known, None) if known is not None else None
        found: Value | None = None
        for owner in cls.lineage:
            value = owner.attrs.get(name)
            if value is not None:
                found = value
                break
        if found is None:
            method = cls.find_method(name)
            if method is not None and method.is_property:
                summary = self.summary(method, None)
                return summary.returns if summary is not None and method.home is self else None
            heir = self.heir(cls, name)
            if heir is not None and method is None:
                return self.attribute_of(heir, name)
        elif name in self.scope.outside_stores or any(owner.sets_by_variable for owner in cls.lineage):
            return without_place(found)
        if (found is None or found.kind == NONE) and any(name in owner.tensor_fields for owner in cls.lineage):
            return tensor(UNKNOWN_PLACE)  # class Rays: origins: Tensor; colors: Tensor | None = None
        # whether gradients are recorded is for the callers to say
        return found.but(tracked=None) if found is not None and found.tracked else found

    def attribute_at_use(self, cls: Class | None, name: str, frame: Frame) -> Value | None:
        """What ``self.name`` is in the method that ``frame`` follows."""
        if cls is None:
            return None
        if not any(name in owner.attrs or name in owner.methods for owner in cls.lineage):
            heir = self.heir(cls, name)
            if heir is not None and heir.home is not None:
                inherited = heir.home.attribute_at_use(heir, name, frame)
                if inherited is not None:
                    return self._inherited(inherited, heir, cls, name, frame)
        value = self.attribute_of(cls, name)
        if value is None:
            return None
        if value.place.kind == "meta" and frame.function is not None and frame.function.name != "__init__":
            return without_place(value)  # anything may have given it data since
        if value.kind == TENSOR and cls.is_module and frame.role != CONSTRUCTOR:
            stored = [stored for _, stored in self.stores(cls, name)]
            registered = [each.ref in ("parameter", "buffer") for each in stored]
            if any(registered) and all(
                known or _is_placeholder(each) for known, each in zip(registered, stored, strict=True)
            ):
                return value.but(place=frame.self_place)  # else: self.scale = torch.tensor([])   for torch.jit.script
        if frame.role != CONSTRUCTOR and any(name in owner.list_states for owner in cls.lineage):
            on_host = any(name in owner.host_states for owner in cls.lineage)
            return Value(LIST, items=Value(THING, UNKNOWN_PLACE if on_host else frame.self_place))
        for owner in cls.lineage:
            pending = owner.pending.get(name)
            if pending and frame.role != CONSTRUCTOR and _is_first_call(frame, cls, value, pending):
                value = value.but(tracked=None, pinned=None)  # as far as that goes, later calls count, too
            elif pending and frame.role != CONSTRUCTOR:
                # another method sets it too, to what is not known yet
                if value.kind != MODULE:
                    return written_elsewhere(value)
                return _at_use(value, frame.self_place, (cls, name)) if cls.is_module else value
            if value.kind == MODULE and owner.pending_moves.get(name) and not cls.is_module:
                return without_place(value)
        if value.kind in (LIST, TUPLE, DICT) and modules_in(value):
            return UNKNOWN  # another method may move them
        if value.kind == DEVICE and value.place.kind == "device" and any(name in c.attrs for c in cls.lineage):
            return value.but(place=Place("device", f"self.{name}", cls.scope))
        if frame.role == CONSTRUCTOR:
            return value
        if not cls.is_module:
            # a base that is not seen may be a module and move what it holds
            return (
                value
                if cls.known_whole or cls.is_dataset or value.kind not in (MODULE, TENSOR)
                else without_place(value)
            )
        if value.kind == TENSOR and any(name in owner.buffers for owner in cls.lineage):
            return value.but(place=frame.self_place)
        if value.kind == TENSOR and any(owner.buffers_by_variable for owner in cls.lineage):
            return value.but(place=UNKNOWN_PLACE)
        return self._or_default(_at_use(value, frame.self_place, (cls, name)), cls, name)

    def _or_default(self, value: Value, cls: Class, name: str) -> Value:
        """``self.mean = torch.zeros(3) if mean is None else mean``: plain, and on the host where nobody gives one."""
        stored = next((owner.attrs[name] for owner in cls.lineage if name in owner.attrs), value)
        if stored.or_host is None or value.place.is_host or value.kind not in (TENSOR, UNKNOWN_KIND):
            return value
        host = stored.or_host.value.but(attr=(cls, name))
        return value.but(or_host=stored.or_host._replace(value=host))

    def _inherited(self, value: Value, heir: Class, cls: Class, name: str, frame: Frame) -> Value:
        """An attribute of a base in another file, as ``self`` has it here."""
        here = frame.self_place
        value = substitute(value, {("self", heir.scope): here})
        value = elsewhere.value(value, None, {(here.name, here.scope)})
        if value.kind == DEVICE and value.place == SOMEWHERE:
            return value.but(place=Place("device", f"self.{name}", cls.scope))
        return value

    def store(self, cls: Class, name: str, value: Value, statement: cst.CSTNode, frame: Frame) -> None:
        """``self.name = value``."""
        if frame.dead or frame.function is None:
            return
        host = (value.kind == DEVICE and value.place.is_host) or (value.kind == DATA and value.text == "cpu")
        if name == "device" and host and frame.role == CONSTRUCTOR and not frame.conditional:
            # self.device = torch.device("cpu"), and elsewhere: model.device = "cuda"   what else would it be kept for?
            value = Value(DEVICE, UNKNOWN_PLACE)
        known = cls.attrs.get(name)
        if known is not None and value.ref in ("parameter", "buffer") and not frame.conditional:
            # self.low = torch.ones(n); self.low = nn.Parameter(self.low): what was there before is gone
            earlier = cls.stores.get(name, [])
            if all(function is frame.function for _, _, function in earlier):
                earlier.clear()
                known = None
        cls.attrs[name] = value if known is None else join(known, value)
        cls.stores.setdefault(name, []).append((statement, value, frame.function))

    def evaluate_class(self, cls: Class) -> None:
        """Follow the constructors of a class, so that its attributes are known."""
        if cls.home is not self:
            return  # followed whole
        for owner in reversed(cls.lineage):
            if owner.evaluated:
                continue
            owner.evaluated = True
            for method in owner.methods.values():
                if method.role == CONSTRUCTOR or method.name == "__init__":
                    self.summary(method, None)

    def summary(self, function: Function, caller: Frame | None) -> Summary | None:
        """What a function does, followed on first demand; ``None`` while it is being followed (recursion)."""
        if function.summary is not None or function.home is not self:
            return function.summary
        if function in self._running:
            return None
        self._running.add(function)
        try:
            if function.cls is not None:
                self.evaluate_class(function.cls)
                if function.summary is not None:
                    return function.summary
            env: Env = {}
            frame = Frame(self, function, env, self._closures(function, caller))
            frame.bind_parameters()
            tensors = frozenset(name for name, value in env.items() if value.holds_tensors)
            frame.redirect_by_decorator()
            if not function.is_kernel:
                execute_block(frame, function.node.body)
            returned = frame.returns
            if not returned:
                result = UNKNOWN
            else:
                result = returned[0]
                for value in returned[1:]:
                    result = join(result, value)
            if function.is_generator:
                result = result if result.kind == LIST else UNKNOWN
            if any(d.rpartition(".")[2] == "contextmanager" for d in function.decorators):
                result = UNKNOWN
            gives_data = any(value.is_data for value in returned)
            function.summary = Summary(
                result, frame.constraints, tuple(frame.perhaps), tuple(frame.indexed), frame.moved, tensors,
                frame.captured, gives_data,
            )  # fmt: skip
            # functions made here outlive it, with the variables as it leaves them
            frame.env = self._environments[function] = self._left_to_closures(frame.merge(frame.at_return, frame.env))
            if function.cls is not None:
                for pending in (*function.cls.pending.values(), *function.cls.pending_moves.values()):
                    pending.discard(function.name)
            for inner in frame.nested:
                self.summary(inner, frame)
            return function.summary
        finally:
            self._running.discard(function)

    # following ----------------------------------------------------------------------------------

    def _follow(self) -> None:
        execute_block(self._main, self.source.module.body)
        if self._main.env is not None:
            self._module_env = self._main.env
        for cls in self.scope.classes.values():
            self.evaluate_class(cls)
        functions = list(self.scope.functions.values())
        called = {name for f in functions for name in (*f.calls, *f.self_calls)}
        # those that set attributes first, then callers before what they call: a call tells what arguments are
        storing = [f for f in functions if f.cls is not None and f.stores]
        roots = [f for f in functions if f.name not in called]
        for function in (*storing, *roots, *functions):
            self.summary(function, None)
        self._drop_unused_optimizers()

    def _drop_unused_optimizers(self) -> None:
        """An optimizer that nothing reads once its module has moved is no worse for the move."""
        found = self.facts.built_before_move
        if not found:
            return
        for value in self.values.values():
            if value.kind == OPTIMIZER:
                for built in value.items or ():
                    if built.moved is not None:
                        found[built.call].used = True
        self.facts.built_before_move = {call: fact for call, fact in found.items() if fact.used}

    def _left_to_closures(self, env: Env | None) -> Env:
        written = self.scope.globals_written
        if env is None or not written.intersection(env):
            return env or {}
        return {name: written_elsewhere(value) if name in written else value for name, value in env.items()}

    def _closures(self, function: Function, caller: Frame | None) -> tuple[Env, ...]:
        closures: list[Env] = []
        outer = function.outer
        if outer is not None:
            if caller is not None and caller.function is outer and caller.env is not None:
                closures.append(caller.env)
                closures += caller.closures
                return tuple(closures)
            known = self._environments.get(outer)
            if known is not None:
                closures.append(known)
        module = self._main.env if self._main.env is not None else self._module_env
        closures.append(module)
        return tuple(closures)

    def _redirected_default(self) -> Place:
        """Where factories put what names no device: unknown where a function of the file may redirect them."""
        if self._names("set_default_tensor_type"):
            self.default_type_set = True
            return UNKNOWN_PLACE
        return UNKNOWN_PLACE if self._names("set_default_device") else HOST

    def _names(self, word: str) -> bool:
        """Whether the code, not only a comment, names this."""
        if word not in self.source.text:
            return False
        return any(name.value == word for name in self.source.nodes_of(cst.Name))


def _is_first_call(frame: Frame, cls: Class, value: Value, pending: set[str]) -> bool:
    """``def update(self, x): self.total = self.total + x``, of a plain object: where nothing but this method sets what
    the constructor made, its first call finds that."""
    alone = frame.function is not None and pending == {frame.function.name}
    return alone and not cls.is_module and value.kind == TENSOR and value.place.is_host


def _is_placeholder(value: Value) -> bool:
    """``torch.tensor(0)``, ``torch.tensor([])``, ``torch.empty(0)``: held where there is nothing to hold."""
    made = value.origin
    if value.kind != TENSOR or not isinstance(made, cst.Call):
        return value.kind == NONE
    if dotted(made.func).rpartition(".")[2] in ("arange", "linspace", "logspace"):
        return False  # torch.arange(0, n)
    first = made.args[0].value if made.args else None
    empty = isinstance(first, cst.List | cst.Tuple) and not first.elements
    return bool(value.zero) or first is None or empty or (isinstance(first, cst.Integer) and first.value == "0")


def _at_use(value: Value, self_place: Place, attr: tuple[Class, str]) -> Value:
    """An attribute as a method finds it once the module has been moved."""
    kind = value.kind
    if kind == MODULE:
        return value.but(place=self_place, obj=None)
    if kind == TENSOR:
        if value.ref in ("parameter", "buffer"):
            return value.but(place=self_place, origin=value.origin)
        return value.but(attr=attr)
    if kind == THING:
        return value.but(place=self_place) if value.ref == "moved" else value.but(attr=attr)
    if kind == LIST:
        items = value.items
        if isinstance(items, Value) and items.kind in (MODULE, TENSOR):
            return UNKNOWN if items.kind == MODULE else Value(LIST, items=_at_use(items, self_place, attr))
        return value
    if kind == TUPLE:
        return value.but(items=[_at_use(item, self_place, attr) for item in value.items])
    if kind == DICT:
        return value.but(items={key: _at_use(item, self_place, attr) for key, item in value.items.items()})
    return value if kind != UNKNOWN_KIND else UNKNOWN
