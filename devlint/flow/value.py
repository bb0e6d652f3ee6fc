"""Value: what the flow knows of an expression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import libcst as cst

from devlint import tree
from devlint.flow.place import HANDED, HOST, SOMEWHERE, UNKNOWN_PLACE, Place, from_string
from devlint.flow.place import join as join_places

# kinds
UNKNOWN_KIND = "unknown"
TENSOR = "tensor"
THING = "thing"  # holds tensors that all live at one place: a batch, a model's output, something moved by .to()
MODULE = "module"
PARAMS = "params"  # what .parameters() gives
OPTIMIZER = "optimizer"
LOADER = "loader"
DEVICE = "device"
GENERATOR = "generator"
DATA = "data"  # host data: Python and numpy values, sizes, strings
ARRAY = "array"  # numpy's part of it
DTYPE = "dtype"
NONE = "none"
LIST = "list"  # any homogeneous sequence; items is its element, or None while empty
TUPLE = "tuple"  # items is a list of values
DICT = "dict"  # items maps constant keys to values; "*" is the rest
FUNCTION = "function"  # ref is the function, items what a bound method is bound to
PARTIAL = "partial"  # functools.partial: ref is what is called, items the arguments given so far
CLASS = "class"
NAME = "name"  # a name of an outside package, ref is its qualified name
SELF = "self"
INSTANCE = "instance"  # of a class of the project that is no module
SUPER = "super"
IN_FLIGHT = "in flight"  # not a value: a copy to the host that nothing has waited for
CONTEXT = "context"  # a context manager of torch's, ref is its qualified name

#: ``ref`` of a dtype that is kept with settings: in older code that is a tensor type, which names a device as well.
OF_SETTINGS = "settings"
# what a device is: a torch.device; a tensor's, which has an index unless it is the host; one or a string
OBJECT, OF_TENSOR, OBJECT_OR_TEXT = "torch.device", "tensor's torch.device", "torch.device or string"


class Built(NamedTuple):
    """An optimizer as it was built by ``call`` from parameters of ``modules`` that were on the host.

    ``state``: how and where it got state while they were, as (``built``, ``loaded`` or ``stepped``, node).
    ``moved``: the call that moved one of them afterwards.
    """

    call: cst.Call
    modules: tuple[Any, ...]
    state: tuple[str, cst.CSTNode] | None = None
    moved: cst.Call | None = None


class OrHost(NamedTuple):
    """What is on the host on one side of an ``if``: the ``value`` there, the ``test``, and what it is on the other."""

    value: Value
    test: cst.CSTNode
    other: Value


_SLOTS = (
    "kind",
    "place",
    "origin",
    "pinned",
    "grad",
    "zero",
    "items",
    "ref",
    "obj",
    "attr",
    "text",
    "holds",
    "tracked",
    "or_host",
    "weight",
)

_CONTAINERS = frozenset({LIST, TUPLE, DICT})
#: Values inside a container of containers beyond which its elements are unknown: ``t = (t, t)`` doubles them each time.
_MOST_NESTED = 1_000


class Value:
    """What is known of a value. Treated as immutable: change one with :meth:`but`.

    ``origin`` is the node where it got to its place. ``pinned``: page-locked, pageable or not known
    (``True``, ``False``, ``None``). ``grad``: surely a leaf that requires gradients. ``zero``:
    zero-dimensional, surely not, or not known. ``tracked``: recorded by autograd, surely not, or not known.
    ``holds``: a module that surely has parameters. ``obj`` is the identity of a module, kept through moves.
    ``attr`` names the attribute ``(class, name)`` a value was read from. ``text`` is a string constant's value.
    ``ref`` of a device is :data:`OBJECT`, :data:`OF_TENSOR` or :data:`OBJECT_OR_TEXT`; ``None`` where it may be
    anything that names one; ``ref`` of a tensor or a thing says what it is, where that matters (``parameter``,
    ``buffer``, ``non-leaf`` for a moved parameter, ``mask``, ``moved``, ``output``, ``dataset``, ``encoding``, the
    loader of a batch). ``items`` of an optimizer are its :class:`Built`, of an
    object the devices that it was told, by attribute; of what is nobody knows where, the tensor that it is made of, as
    far as :mod:`devlint.flow.suppositions` may say so. ``or_host``: that it is a tensor on the host on one
    side of an ``if``. ``weight`` counts the values inside.
    """

    __slots__ = _SLOTS

    def __init__(
        self,
        kind: str,
        place: Place = UNKNOWN_PLACE,
        origin: cst.CSTNode | None = None,
        *,
        pinned: bool | None = None,
        grad: bool = False,
        zero: bool | None = None,
        items: Any = None,
        ref: Any = None,
        obj: Any = None,
        attr: tuple[Any, str] | None = None,
        text: str | None = None,
        holds: bool = False,
        tracked: bool | None = None,
    ) -> None:
        self.kind, self.place, self.origin = kind, place, origin
        self.pinned, self.grad, self.zero = pinned, grad, zero
        self.items, self.ref, self.obj, self.attr, self.text = items, ref, obj, attr, text
        self.holds, self.tracked = holds, tracked
        self.or_host: OrHost | None = None
        self.weight = 1
        if kind in _CONTAINERS and items:
            self._weigh()

    def _weigh(self) -> None:
        """Count the values inside, each as often as it is held; too many in too deep are forgotten."""
        items = self.items
        inner = [items] if isinstance(items, Value) else items.values() if isinstance(items, dict) else items
        self.weight = 1 + sum(item.weight for item in inner)
        if self.weight > _MOST_NESTED and any(item.weight > 1 for item in inner):
            shallow = {LIST: UNKNOWN, TUPLE: [UNKNOWN] * len(inner), DICT: {"*": UNKNOWN}}
            self.items = shallow[self.kind]
            self.ref, self.weight = None, 1 + len(inner)

    def but(self, **changes: Any) -> Value:
        """A copy with some fields changed."""
        new = Value.__new__(Value)
        for slot in _SLOTS:
            setattr(new, slot, changes[slot] if slot in changes else getattr(self, slot))
        new.or_host = changes.get("or_host")  # of the very value only, not of what is made from it
        if "items" in changes and new.kind in _CONTAINERS and new.items:
            new._weigh()
        return new

    @property
    def is_tensor(self) -> bool:
        return self.kind == TENSOR

    @property
    def holds_tensors(self) -> bool:
        """A tensor, or an opaque structure of tensors at one place."""
        return self.kind == TENSOR or self.kind == THING

    @property
    def follows(self) -> bool:
        """Whether what is computed from it and another tensor may be where that one is: a single number on the host."""
        return bool(self.zero) or (self.place.is_host and self.zero is None)

    @property
    def is_data(self) -> bool:
        """On the host and no tensor: Python's and numpy's values."""
        return self.kind == DATA or self.kind == ARRAY

    @property
    def is_device_object(self) -> bool:
        """Surely a ``torch.device``, not a string that names one."""
        return self.kind == DEVICE and (self.ref == OBJECT or self.ref == OF_TENSOR)

    def __repr__(self) -> str:
        return f"<{render(self)}>"


UNKNOWN = Value(UNKNOWN_KIND)
HOST_DATA = Value(DATA, HOST)
#: A string that names the host on one path, and something else on another.
HOST_OR_DEVICE = Value(DATA, HOST, ref="host or device")
NUMPY_ARRAY = Value(ARRAY, HOST)
NOTHING = Value(NONE, HOST)
ANY_DTYPE = Value(DTYPE)


def tensor(place: Place, origin: cst.CSTNode | None = None, **facts: Any) -> Value:
    """A tensor at a place, where it got by the node ``origin``."""
    return Value(TENSOR, place, origin, **facts)


def join(a: Value, b: Value) -> Value:
    """What is known of a value that is ``a`` on one path and ``b`` on another."""
    if a is b:
        return a
    if a.kind != b.kind:
        # `x = None` before a branch sets it: whoever uses x uses what the branch made
        if a.kind == NONE:
            return b
        if b.kind == NONE:
            return a
        kinds = {a.kind, b.kind}
        if kinds == {TENSOR, THING}:
            return a.but(
                kind=THING,
                place=join_places(a.place, b.place),
                zero=None,
                obj=None,
                pinned=None,
                tracked=_both(a.tracked, b.tracked),
            )
        if kinds == {DATA, ARRAY}:
            return HOST_DATA
        if kinds == {LIST, TUPLE}:
            lists = [v if v.kind == LIST else Value(LIST, items=element(v)) for v in (a, b)]
            return join(*lists)
        if kinds == {TENSOR, UNKNOWN_KIND}:
            # if x.dim() == 3: x = pad(x)
            origin = _made_of_both(a, b)
            return UNKNOWN.but(items=origin, ref=LIKE_TENSOR) if origin is not None else UNKNOWN
        return UNKNOWN
    kind = a.kind
    if kind == DATA and a.text != b.text and from_string(a.text or "").is_host != from_string(b.text or "").is_host:
        return HOST_OR_DEVICE
    if kind == PARAMS and a.obj != b.obj:
        return a.but(place=join_places(a.place, b.place), ref=None, obj=None)  # SGD(a.parameters() if x else ...)
    if kind == UNKNOWN_KIND and (a.items is not None or b.items is not None):
        origin = _made_of_both(a, b)
        return UNKNOWN.but(items=origin, ref=a.ref if a.ref == b.ref else None) if origin is not None else UNKNOWN
    if kind in (UNKNOWN_KIND, DATA, ARRAY, NONE, DTYPE, PARAMS):
        return a if a.text == b.text and a.ref == b.ref else a.but(text=None, ref=None, obj=None)
    if kind in (NAME, FUNCTION, PARTIAL, CLASS, SELF, SUPER, CONTEXT):
        return a if a.ref == b.ref and a.items is b.items else UNKNOWN
    if kind == OPTIMIZER:
        return Value(
            OPTIMIZER, a.place, a.origin if a.origin is b.origin else None, items=_join_built(a.items, b.items)
        )
    place = join_places(a.place, b.place)
    same_place = a.place == b.place
    items, ref = a.items, a.ref if a.ref == b.ref else None
    if kind == DEVICE and a.is_device_object and b.is_device_object and ref is None:
        ref = OBJECT
    if kind == DEVICE and {a.place.kind, b.place.kind} in ({"host", "device"}, {"host", "fixed"}):
        place = b.place if a.place.is_host else a.place  # the accelerator if there is one: the target device
    if kind == LIST:
        items = b.items if a.items is None else a.items if b.items is None else join(a.items, b.items)
    elif kind == TENSOR:
        items = _made_of_both(a, b) if a.items is not b.items else a.items
    elif kind == INSTANCE and ref is not None:
        # of a subclass, or before and after somebody sets one, an object has others
        others = b.items or {}
        items = {attr: join_places(at, others[attr]) for attr, at in (items or {}).items() if attr in others}
    elif kind == TUPLE:
        if len(a.items) != len(b.items):
            return Value(LIST, items=join(element(a), element(b)))
        items = [join(x, y) for x, y in zip(a.items, b.items, strict=True)]
    elif kind == DICT:
        items = {key: _join_entry(a.items, b.items, key) for key in {**a.items, **b.items}}
    return Value(
        kind,
        place,
        a.origin if a.origin is b.origin or same_place else None,
        pinned=a.pinned if a.pinned == b.pinned else None,
        grad=a.grad and b.grad,
        zero=a.zero if a.zero == b.zero else None,
        items=items,
        ref=ref,
        obj=a.obj if a.obj == b.obj else None,
        attr=a.attr if a.attr == b.attr else None,
        holds=a.holds and b.holds,
        tracked=_both(a.tracked, b.tracked),
    )


def is_same(a: Value, b: Value) -> bool:
    """Whether no more is known of one value than of another, as far as places go."""
    if a is b:
        return True
    if a.kind != b.kind or a.place != b.place or a.zero != b.zero or a.pinned != b.pinned or a.obj is not b.obj:
        return False
    one, other = a.items, b.items
    if a.kind == LIST:
        return one is other or (one is not None and other is not None and is_same(one, other))
    if a.kind == TUPLE:
        return len(one) == len(other) and all(map(is_same, one, other))
    if a.kind == DICT:
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    return True


def _join_entry(one: dict[str, Value], other: dict[str, Value], key: str) -> Value:
    """What either dictionary holds under a key; ``{k: v.to(device) for k, v in rows.items()}`` says it of any key."""
    a, b = one.get(key) or one.get("*"), other.get(key) or other.get("*")
    return join(a, b) if a is not None and b is not None else a or b or UNKNOWN


def made_of(value: Value) -> Value | None:
    """The tensor, handed in or on a device, that a value is, or is supposed to be made of."""
    kind = value.kind
    if kind in (TENSOR, UNKNOWN_KIND) and value.place.kind == "unknown":
        known: Value | None = value.items
        return known
    return value if kind == TENSOR and value.place.kind in ("param", "device") else None


def _made_of_both(a: Value, b: Value) -> Value | None:
    one, other = made_of(a), made_of(b)
    return one if one is not None and other is not None and one.place == other.place else None


def branched(a: Value, b: Value, test: cst.CSTNode) -> Value:
    """What is ``a`` or ``b``, as ``test`` decides: :func:`join`, and where it is on the host on one side, that."""
    joined = join(a, b)
    if _is_device_or_host(a, b, test) or _is_device_or_host(b, a, test):
        return Value(DEVICE)  # where = x.device if torch.is_tensor(x) else "cpu"
    if joined.kind == DEVICE and a.place.is_host != b.place.is_host and joined.place.name and not _asks_for_one(test):
        return joined.but(place=SOMEWHERE)  # target = device if fits else torch.device("cpu"): surely neither
    if joined.kind in (TENSOR, THING, UNKNOWN_KIND) and not joined.place.is_host:
        for side, other in ((a, b), (b, a)):
            if side.or_host is not None:
                return joined.but(or_host=side.or_host)  # the first of several tests speaks
            if side.kind == TENSOR and side.place.is_host and side.zero is False and side.attr is None:
                return joined.but(or_host=other.or_host or OrHost(side, test, other))
    return joined


def carried(result: Value, operand: Value) -> Value:
    """What is made of ``operand`` alone: on the host on one side of an ``if``, where that is."""
    if operand.or_host is None or result.kind != TENSOR or result.place.is_host:
        return result
    host, test, other = operand.or_host
    zero = result.zero if result.zero is not None else host.zero
    made = result.but(place=host.place, origin=host.origin, zero=zero)
    return result.but(or_host=OrHost(made, test, result.but(place=other.place, origin=other.origin)))


def _is_device_or_host(device: Value, host: Value, test: cst.CSTNode) -> bool:
    """Whether a test that is not about accelerators chooses between the device of a tensor and the host."""
    names_host = host.kind == DEVICE or (host.kind == DATA and host.text is not None)
    if not names_host or not (host.place if host.kind == DEVICE else from_string(host.text or "")).is_host:
        return False
    if device.kind != DEVICE or device.place.is_host or _asks_for_one(test):
        return False
    return device.ref == OF_TENSOR or _asks_for_type(test)


def _asks_for_one(test: cst.CSTNode) -> bool:
    """Whether a test is about there being an accelerator, or about a device having been given."""
    return any(type(n) is cst.Name and n.value in ("is_available", "device_count", "None") for n in tree.walk(test))


def _asks_for_type(test: cst.CSTNode) -> bool:
    return any(type(n) is cst.Name and n.value in ("is_tensor", "isinstance") for n in tree.walk(test))


def modules_in(value: Value) -> list[Value]:
    """The modules that a value is or holds."""
    if value.kind == MODULE:
        return [value]
    if value.kind not in _CONTAINERS or not value.items:
        return []
    items = value.items.values() if value.kind == DICT else value.items
    if value.kind == LIST:
        items = value.ref if isinstance(value.ref, tuple) else [value.items]
    return [module for item in items for module in modules_in(item)]


def _both(a: bool | None, b: bool | None) -> bool | None:
    return a if a is b else None


def part(value: Value) -> Value:
    """``batch.goal``, ``batch.get("goal")``: where the whole is; a move of it need not move it in place."""
    return value.but(text=PART) if value.kind == THING and value.text is None else value


def without_place(value: Value) -> Value:
    """The value once something that cannot be followed may have moved it or changed what it holds."""
    kind = value.kind
    if kind == THING:
        value = value.but(origin=None)  # a batch that its loader gave, and that somebody may have moved
    if kind in (TENSOR, THING, MODULE, LOADER):
        return value.but(place=UNKNOWN_PLACE, zero=None, pinned=None, ref=value.ref if kind == MODULE else None)
    if kind in (LIST, TUPLE, DICT):
        return Value(LIST, items=UNKNOWN) if kind == LIST else UNKNOWN
    return value if value.text is None else UNKNOWN


def _join_built(a: tuple[Built, ...] | None, b: tuple[Built, ...] | None) -> tuple[Built, ...]:
    """Every optimizer that either may be; with the state and the move that it has on one path at least."""
    found = {built.call: built for built in a or ()}
    for built in b or ():
        mine = found.get(built.call, built)
        found[built.call] = mine._replace(state=mine.state or built.state, moved=mine.moved or built.moved)
    return tuple(found.values())


def written_elsewhere(value: Value) -> Value:
    """What is known of a name that functions write, too, at times of their own."""
    if value.kind in (NAME, FUNCTION, CLASS):
        return value
    return tensor(UNKNOWN_PLACE) if value.kind == TENSOR else UNKNOWN


#: ``ref`` of what is read off a layer, ``layer.weight``: registered with any module that it is made an attribute of.
OF_LAYER = "parameter of a layer"
#: ``ref`` of what a test says is a tensor of torch's, ``isinstance(x, torch.Tensor)``, and nothing else is known of.
TOLD = "told to be a tensor"
#: ``text`` of a thing that is one element of an opaque structure: a tensor, or something that holds one.
ELEMENT = "element"
#: ``text`` of a thing that is read off a batch by a name, ``batch.goal``: one more of its kind, or a tensor.
PART = "part"
#: ``text`` of a tensor that is one row of another.
ROW = "row"
#: ``text`` of a thing that came out of a file: tensors, and settings beside them.
FILE = "file"
#: ``ref`` of what nobody knows, but is used as only a tensor is: ``x = pad(x)`` takes the place of one, and
#: ``stack(x).unsqueeze(0)`` has a method of theirs.
LIKE_TENSOR = "like a tensor"
#: The identity of a module that is one of several.
SEVERAL = object()


def element(value: Value) -> Value:
    """What iterating over the value gives each time."""
    each = _element(value)
    return each.but(obj=SEVERAL) if each.kind == MODULE else each


def one_of(values: Sequence[Value]) -> Value:
    """What is known of some element of a sequence. One device of several is no choice of the target device."""
    joined = values[0]
    for value in values[1:]:
        joined = join(joined, value)
    if joined.kind == DEVICE and len({value.place.is_host for value in values}) > 1:
        return joined.but(place=UNKNOWN_PLACE)
    return joined


def _element(value: Value) -> Value:
    kind = value.kind
    if kind == LIST:
        return value.items if value.items is not None else UNKNOWN
    if kind == TUPLE:
        return one_of(value.items) if value.items else UNKNOWN
    if kind == TENSOR:
        return value.but(zero=None, grad=False, obj=None, text=ROW)  # a row, which may be a single number
    if kind == THING:
        return value.but(obj=None, text=ELEMENT)
    if kind == LOADER:
        return Value(THING, value.place, value.origin, pinned=value.pinned, ref=value, tracked=False)
    if kind == MODULE:  # a Sequential or ModuleList
        if isinstance(value.items, Value):
            return value.items.but(place=value.place, obj=None)
        if value.ref == "torch.nn.ParameterList":
            # self.fields = nn.ParameterList(); self.fields.append(Field(8))   keeps what is no tensor as it is
            return Value(THING, value.place, value.origin, text=ELEMENT)
        return Value(MODULE, value.place, value.origin)
    if kind == UNKNOWN_KIND and value.items is not None:
        return value.but(ref=None)  # mean, scale = summarize(x)
    if kind in (DATA, ARRAY, DICT):
        return HOST_DATA if kind != ARRAY else NUMPY_ARRAY
    if kind == PARAMS:
        return tensor(value.place, value.origin, grad=False, obj=value.obj)
    if kind == INSTANCE and value.text == "axes":
        return value  # of an array of plots
    return UNKNOWN


def render(value: Value) -> str:
    """The value in words, as ``reveal_device`` tests write it."""
    kind = value.kind
    if kind in (TENSOR, THING):
        return f"{value.place} pinned" if value.pinned and value.place.is_host else str(value.place)
    if kind == MODULE:
        return f"module on {value.place}"
    if kind in (OPTIMIZER, LOADER, FUNCTION, CLASS):
        return kind
    if kind == PARTIAL:
        return FUNCTION
    if kind == DEVICE:
        return f"device {value.place}"
    if kind == GENERATOR:
        return f"generator on {value.place}"
    if kind == DATA and value.text is not None:
        place = from_string(value.text)
        return f"device {place}" if place.is_known else "host data"
    if kind in (DATA, ARRAY):
        return "host data"
    if kind == LIST:
        if value.items is not None and value.items.is_data:
            return "host data"
        return f"list of {render(value.items)}" if value.items is not None else "list"
    if kind == TUPLE:
        return f"tuple ({', '.join(render(item) for item in value.items)})"
    if kind == DICT:
        return "dict"
    return "unknown"


def substitute(value: Value, places: dict[tuple[str, int], Place]) -> Value:
    """The value with the callee's symbols replaced by the caller's places."""
    kind = value.kind
    if kind in (LIST, TUPLE, DICT):
        items = value.items
        if isinstance(items, Value):
            return value.but(items=substitute(items, places), ref=None)
        if isinstance(items, list):
            return value.but(items=[substitute(item, places) for item in items])
        if isinstance(items, dict):
            return value.but(items={key: substitute(item, places) for key, item in items.items()})
        return value
    if kind == INSTANCE and value.items:
        return value.but(items={attr: places.get((at.name, at.scope), at) for attr, at in value.items.items()})
    if value.place == HANDED:
        return value.but(place=UNKNOWN_PLACE)  # of one call or another
    place = places.get((value.place.name, value.place.scope))
    name = value.place.name
    if place is None and name.startswith("self.") and name.endswith(".device"):
        place = places.get(("self", value.place.scope))  # net.clone(), which asks for self.weight.device
        if name == "self.device" and place is not None and (place.name, place.scope) == ("self", value.place.scope):
            return value  # rows = self.brought(rows): the object that calls names its device so, too
    if place is None or place == value.place or value.place.kind not in ("device", "param"):
        return value
    if place.kind == "unknown" and kind == DEVICE:
        return value.but(place=UNKNOWN_PLACE)
    return value.but(place=place)


def any_of(dictionary: Value) -> Value:
    """What some key of a dictionary holds."""
    values = list(dictionary.items.values())
    joined = values[0] if values else UNKNOWN
    for value in values[1:]:
        joined = join(joined, value)
    return joined


def updated(dictionary: Value, by: Value) -> Value:
    """A dictionary after ``update``: all of it may have changed where what came in is not known."""
    if by.kind != DICT:
        return dictionary.but(items={"*": UNKNOWN})
    items = {**dictionary.items, **by.items}
    if "*" in by.items:
        items["*"] = any_of(Value(DICT, items=items))
        items = {key: join(value, items["*"]) for key, value in items.items()}
    return dictionary.but(items=items)


def inside(value: Value) -> list[Value]:
    """What a list, a tuple or a dictionary holds, each once as far as it is told apart."""
    if value.kind == LIST:
        return [value.items] if value.items is not None else []
    return list(value.items.values() if value.kind == DICT else value.items)
