"""Frame: one function (or the module body) being followed, its variables and what it records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import libcst as cst

from devlint import tree
from devlint.flow import copies, hypothesis
from devlint.flow import torch_table as table
from devlint.flow.arguments import Operand
from devlint.flow.facts import Meeting, Wait
from devlint.flow.names import annotation_names, dotted, is_dict_of_tensors, is_list_of_tensors, is_tensor_annotation
from devlint.flow.place import (
    CANNOT_TELL,
    DIFFERENT,
    HOST,
    SOMEWHERE,
    UNKNOWN_PLACE,
    Place,
    from_string,
    relation,
)
from devlint.flow.scope import CONSTRUCTOR, DEVICE_SIDE, HOST_SIDE, MAIN, Class, Function, Scope
from devlint.flow.value import (
    ARRAY,
    CLASS,
    DATA,
    DEVICE,
    DICT,
    FUNCTION,
    HOST_DATA,
    HOST_OR_DEVICE,
    INSTANCE,
    LIKE_TENSOR,
    LIST,
    LOADER,
    MODULE,
    NAME,
    NONE,
    OBJECT,
    OBJECT_OR_TEXT,
    OPTIMIZER,
    PARAMS,
    ROW,
    SELF,
    TENSOR,
    THING,
    TUPLE,
    UNKNOWN,
    UNKNOWN_KIND,
    Value,
    branched,
    join,
    made_of,
    without_place,
)

if TYPE_CHECKING:
    from devlint.flow import Flow

Env = dict[str, Value]

#: Where factories put what names no device, while a ``with torch.device`` or a default device redirects them.
DEFAULT_PLACE = "<default place>"
#: Bound while autograd does not record: to host data where it surely does not.
NO_GRAD = "<no grad>"

#: Parameters that are often a single number, or a zero-dimensional tensor.
_MAYBE_SCALARS = frozenset("timestep step i idx index k sigma scale weight alpha beta gamma eps lr value".split())
#: In ``forward``, reading one of these says tensor (elsewhere it may be numpy's).
_ARRAY_ATTRIBUTES = frozenset("[,] shape device dtype T ndim".split())
_ARRAY_METHODS = frozenset(
    "size view reshape transpose mean sum std var max min to t repeat pow sqrt abs exp log".split()
)
_FORWARD_NAMES = frozenset(
    "x y z h input inputs feat feats feature features hidden hidden_states image images img imgs logits latent latents "
    "tokens tgt src query key value q k v pred preds prediction predictions target targets label labels emb embeds "
    "embeddings noise sample samples scores mask attention_mask input_ids xs deltas boxes".split()
)
_NONE: frozenset[str] = frozenset()


#: Kinds of values that stay what they are once bound.
_LASTING = frozenset({NAME, FUNCTION, CLASS, UNKNOWN_KIND, NONE})


#: Kinds that may be or hold a tensor that autograd tracks.
_MAY_BE_TRACKED = frozenset({UNKNOWN_KIND, NAME, MODULE, LIST, TUPLE, DICT, INSTANCE, PARAMS})
_RECORD_NOTHING = frozenset({"torch.no_grad", "torch.inference_mode"})


class Around(NamedTuple):
    """A loop that is being followed: the variables as it found them, and as they are where its rounds end early."""

    node: cst.For | cst.While
    entry: Env | None
    breaks: list[Env]
    continues: list[Env]


class Frame:
    """The state while one function is followed.

    ``env`` maps names, and paths such as ``self.x`` or ``batch['y']``, to values; it is ``None``
    where the code cannot be reached. ``closures`` are the environments of enclosing functions and
    the module, nearest first.
    """

    def __init__(self, flow: Flow, function: Function | None, env: Env, closures: tuple[Env, ...]) -> None:
        self.flow, self.function = flow, function
        self.scope: Scope = flow.scope
        self.values = flow.values
        self.facts = flow.facts
        self.env: Env | None = env
        self.closures = closures
        self.cls: Class | None = function.cls if function is not None else None
        if self.cls is None and function is not None and function.outer is not None:
            self.cls = function.outer.cls  # `self` of the enclosing method
        self.role = function.role if function is not None else MAIN
        self.id = function.scope if function is not None else 0
        self.dead = 0  # inside a branch the hypothesis rules out
        self.conditional = 0  # inside a branch that may not run
        self.returns: list[Value] = []
        # the same, each side of `a if x else b` and each part of a tuple by itself: the position of the part, the
        # expression, and the variables as they are there
        self.given_back: list[tuple[int | None, cst.BaseExpression, Value, Env | None]] = []
        self.at_return: Env | None = None  # the variables as they are where the function returns
        self.constraints: list[tuple[Place, Place]] = []
        self.perhaps: dict[tuple[Place, Place], None] = {}  # the same, of branches that may not run
        self.indexed: dict[tuple[str, str], None] = {}  # what is handed in, and is indexed by something handed in
        self.loops: list[Around] = []
        self.nested: list[Function] = []
        self.moved: dict[str, Place] = {}  # parameters that are modules, and where the function moves them
        self.captured: Env = {}  # what it read from around it, as that was then
        self.tries: list[list[Env | None]] = []  # for each try around: the variables as a handler may find them
        self.iterated: list[str | None] = []  # paths of the containers that the loops around go through
        self.filled: dict[cst.CSTNode | None, tuple[cst.Subscript, Value]] = {}  # by what made it on the host
        self.rewritten: Env = {}  # containers a loop over their own keys has given new elements

    # names --------------------------------------------------------------------------------------

    def lookup(self, name: str) -> Value | None:
        """What a name or path holds, here or around the function; ``None`` where nothing binds it."""
        env = self.env
        if env is not None:
            value = env.get(name)
            if value is not None:
                return value
        for closure in self.closures:
            value = closure.get(name)
            if value is not None:
                if value.kind not in _LASTING:
                    self.captured.setdefault(name, value)
                # whether gradients are recorded is for the callers of this function to say
                return value.but(tracked=None) if value.tracked and self.function is not None else value
        return None

    def stale(self, captured: Env) -> bool:
        """Whether a function that was followed with these variables around it would find others now."""
        for name, value in captured.items():
            now = self.lookup(name)
            if now is not value and now is not None and (now.kind != value.kind or now.place != value.place):
                return True
        return False

    def key(self, node: cst.BaseExpression) -> str | None:
        """``a``, ``self.x`` or ``batch['y']``: what a plain path of names is known by in ``env``."""
        if type(node) is cst.Name:
            return node.value
        if type(node) is cst.Attribute:
            base = self.key(node.value)
            return None if base is None else f"{base}.{node.attr.value}"
        if type(node) is cst.Subscript and len(node.slice) == 1 and type(node.slice[0].slice) is cst.Index:
            index = node.slice[0].slice.value
            if type(index) is cst.SimpleString or type(index) is cst.Integer:
                base = self.key(node.value)
                return None if base is None else f"{base}[{index.value}]"
        return None

    def forget(self, name: str) -> None:
        """Drop what is known of paths below a name that is bound anew."""
        env = self.env
        if env is None or not self.flow.has_paths:
            return
        dot, bracket = name + ".", name + "["
        for key in [k for k in env if k.startswith((dot, bracket))]:
            del env[key]

    def change(self, old: Value, key: str | None, new: Value) -> None:
        """A container is changed in place: under the path given, and under every other name it has."""
        env = self.env
        if env is None:
            return
        for name, value in env.items():
            if value.kind == old.kind and (value is old or (value.obj is old.obj and old.obj is not None)):
                env[name] = new if value is old else join(value, new)
        if key is not None and (key in env or ("." not in key and "[" not in key)):
            env[key] = new

    def shake_attributes(self) -> None:
        """``setattr(self, name, value.to(device))``: any attribute may be anywhere."""
        env = self.env or {}
        for name, value in env.items():
            if name.startswith("self."):
                env[name] = without_place(value)

    def shake(self) -> None:
        """Code that is not seen here may have bound any variable anew: ``exec(open(path).read())``."""
        env = self.env
        if env is None:
            return
        for name, value in env.items():
            if value.kind == DATA and value.text is not None and hypothesis.names_device(name):
                env[name] = Value(DEVICE, self.symbol(name))
            elif value.kind == DATA:
                env[name] = value.but(text=None)
            else:
                env[name] = without_place(value)

    # self ---------------------------------------------------------------------------------------

    @property
    def self_place(self) -> Place:
        """Where the parameters and buffers of ``self`` are while this function runs."""
        cls = self.cls
        if cls is None or not cls.is_module:
            return UNKNOWN_PLACE
        if self.role == DEVICE_SIDE:
            return Place("device", "self", cls.scope)
        if self.role in (CONSTRUCTOR, HOST_SIDE):
            return UNKNOWN_PLACE
        return Place("param", "self", cls.scope)

    @property
    def of_autograd(self) -> bool:
        """Whether this is the ``forward`` or ``backward`` of a ``torch.autograd.Function``, and takes its context."""
        function = self.function
        if function is None or function.cls is None or not function.is_static or not function.positional:
            return False
        return any("torch.autograd.Function" in cls.bases for cls in function.cls.lineage)

    def symbol(self, name: str) -> Place:
        """The place that a device called ``name`` stands for here."""
        if name.startswith("self.") and self.cls is not None:
            return Place("device", name, self.cls.scope)
        return Place("device", name, self.id)

    # places -------------------------------------------------------------------------------------

    def device_place(self, value: Value, node: cst.BaseExpression | None = None) -> Place:
        """Where a ``device=`` argument points."""
        kind = value.kind
        if kind == DEVICE:
            return value.place
        if kind == DATA:
            if value.text is not None:
                place = from_string(value.text)
                return SOMEWHERE if value.ref == "choice" and place.is_there else place
            if value is not HOST_OR_DEVICE:
                return SOMEWHERE  # an index: cuda:0, or a rank
            key = self.key(node) if node is not None else None
            return self.symbol(key) if key is not None and hypothesis.names_device(_last_word(key)) else UNKNOWN_PLACE
        if kind == TENSOR:
            return value.place
        if kind == NAME and not value.ref.startswith("torch.") and hypothesis.names_device(_last_word(value.ref)):
            # from project.config import device
            return Place("device", (self.key(node) if node is not None else None) or value.ref)
        if kind == UNKNOWN_KIND and node is not None:
            key = self.key(node)
            last = _last_word(key) if key is not None else ""
            if key is not None and (hypothesis.names_device(last) or hypothesis.numbers_device(last)):
                return self.symbol(key)
            if type(node) is cst.Name and self.function is not None and node.value in self.function.param_names:
                return Place("param", node.value, self.id)
        return UNKNOWN_PLACE

    def default_place(self) -> Place:
        """Where a factory puts what names no device."""
        value = self.env.get(DEFAULT_PLACE) if self.env is not None else None
        if value is None and self.closures:
            value = self.closures[-1].get(DEFAULT_PLACE)  # the module redirects for all
        if value is not None:
            return value.place
        if self.function is None or "set_default_device" in self.function.attribute_words:
            return HOST if not self.flow.default_type_set else UNKNOWN_PLACE
        return self.flow.default_place

    @property
    def redirected(self) -> bool:
        """Whether a default device may be in force here."""
        return self.default_place() != HOST

    # gradients ----------------------------------------------------------------------------------

    @property
    def recording(self) -> bool | None:
        """Whether autograd records here; ``None`` where a variable decides."""
        off = self.env.get(NO_GRAD) if self.env is not None else None
        return True if off is None else False if off.kind == DATA else None

    def tracked(self, operands: Iterable[Value]) -> bool | None:
        """Whether autograd tracks what is computed from these."""
        recording = self.recording
        if recording is False:
            return False
        unknown = False
        for value in operands:
            kind = value.kind
            if kind in (TENSOR, THING) and value.tracked:
                return recording
            unknown = unknown or (value.tracked is None if kind in (TENSOR, THING) else kind in _MAY_BE_TRACKED)
        return None if unknown else False

    # what is recorded ---------------------------------------------------------------------------

    def meet(self, node: cst.CSTNode, operands: Sequence[Operand], what: str, *, strict: bool = False) -> Value | None:
        """The operands of one operation come together; gives the operand that tells where the result lives."""
        there: Operand | None = None
        host: Operand | None = None
        other: Operand | None = None
        given: Operand | None = None
        either: Operand | None = None
        beside: Operand | None = None
        zero: Operand | None = None
        fixed: Operand | None = None
        supposed: Operand | None = None
        hosts: list[Operand] = []
        for operand in operands:
            value = operand[1]
            if value.or_host is not None and either is None:
                either = operand
            elif value.or_host is not None:
                beside = operand
            if value.items is not None and (value.kind == TENSOR or value.ref == LIKE_TENSOR):
                supposed = operand
            if value.kind != TENSOR and value.kind != THING and value.kind != MODULE:
                continue
            place = value.place
            if value.attr is not None and place.kind == "param" and value.zero is False:
                self._meet_kept(node, what, operand, operands)
            if place.kind == "device" or place.kind == "fixed":
                if place.kind == "fixed":
                    fixed = fixed or operand
                if there is None:
                    there = operand
                elif (how := relation(there[1].place, place)) == CANNOT_TELL:
                    self.constrain(there, operand)
                elif how == DIFFERENT and not self.dead:
                    self.facts.apart.setdefault((node, operand[0]), Meeting(node, what, *operand, *there))
            elif place.kind == "host":
                if value.zero is not False and not strict:
                    zero = zero or operand  # a zero-dimensional host tensor mixes with anything
                else:
                    host = host or operand
                    hosts.append(operand)
            elif not value.zero:
                if other is not None and place.kind == "param" and other[1].place.kind == "param":
                    self.constrain(other, operand)
                other = other or operand
                if place.kind == "param" and value.kind != MODULE:
                    given = given or operand
            else:
                zero = zero or operand
                if place.kind == "param" and value.kind != MODULE:
                    given = given or operand  # a number of what was handed in is refused beside host rows
        if either is not None and beside is not None and host is None and there is None and given is None:
            self._meet_either(node, what, either, beside)
        beside_it = there or given or supposed
        if host is None and either is not None and either is not given and beside_it is not None:
            value, test, _ = either[1].or_host  # type: ignore[misc]
            # if self.offload: grad = grad.cpu()   the same flag says where the other is
            if value.origin not in self.facts.moves and not hypothesis.decides(self, test, node):
                host = (either[0], value)
                hosts.append(host)
                other = None if other is either else other
        for each in hosts:  # sums.scatter_add_(0, torch.arange(n), x): both of them
            if there is not None:
                self.met(node, what, each, there)
            elif given is not None:
                self.assume(node, what, each, given)
            elif supposed is not None:
                self.suppose(node, what, each, supposed)
        if other is not None:
            if there is not None:
                self.constrain(there, other)
            elif host is not None:
                self.constrain(host, other)
        if there is not None:
            self.leave_behind(node, operands, what, there)
            for operand in operands:
                self.leave_unmoved(node, what, operand, there)
        elif host is not None:
            self._meet_on_host(node, operands)
        if fixed is not None:
            for operand in operands:
                self.beside(node, what, fixed, operand)
        if host is not None and other is not None and other[1].place == UNKNOWN_PLACE:
            other = None  # torch.rand(n) <= chance(z): on the host, as the other must be
        chosen = there or other or host or zero
        return None if chosen is None else chosen[1]

    def _meet_kept(self, node: cst.CSTNode, what: str, kept: Operand, operands: Sequence[Operand]) -> None:
        """``def __init__(self, scale: Tensor): self.scale = scale``: what a module was handed once, and keeps, stays
        where that was."""
        made = kept[1].origin
        if self.dead or self.function is None or not isinstance(made, cst.Param) or made.annotation is None:
            return  # Inverse(forward.window)   may be handed a parameter, which is registered as it is kept
        for operand in operands:
            value = operand[1]
            here = value.place.kind == "param" and value.place.scope == self.function.scope
            if value.kind == TENSOR and value.attr is None and (value.place.is_there or here):
                self.facts.kept.setdefault((node, kept[0]), Meeting(node, what, *kept, *operand))

    def _meet_either(self, node: cst.CSTNode, what: str, one: Operand, other: Operand) -> None:
        """``a = a.mean() if len(a) else torch.zeros(1); b = b.mean() if len(b) else torch.zeros(1); a + b``"""
        made, test, _ = one[1].or_host  # type: ignore[misc]
        _, other_test, there = other[1].or_host  # type: ignore[misc]
        code = self.scope.source.code
        # the same test sends both to the host
        if made.origin in self.facts.moves or code(test) == code(other_test) or hypothesis.decides(self, test, node):
            return
        if there.kind == TENSOR:
            self.refuse(node, what, (one[0], made), (other[0], there))

    def _meet_on_host(self, node: cst.CSTNode, operands: Sequence[Operand]) -> None:
        """Remember what else on the host comes together with what is there: one of the two cannot be moved alone."""
        numbers = (True,) if type(node) is cst.AugAssign else (True, None)  # scale[i] * torch.ones(n) mixes
        made = [
            value.origin
            for _, value in operands
            if value.kind == TENSOR and value.place.is_host and value.zero not in numbers and value.attr is None
        ]
        for one in made if len(made) > 1 and not self.dead else ():
            for other in made:
                if one is not None and other is not None and one is not other:
                    self.facts.together_on_host.setdefault(one, set()).add(other)

    def leave_behind(self, node: cst.CSTNode, operands: Sequence[Operand], what: str, there: Operand) -> None:
        """``criterion(net(x.to(device)), y)``: a part of a batch as its loader gave it meets what is on a device."""
        for operand in operands if not self.dead else ():
            value = operand[1]
            if value.holds_tensors and not value.place.is_there and value.zero is not True:
                maker = self.values.get(value.origin) if value.origin is not None else None
                if maker is not None and (maker.kind == LOADER or maker.ref == "encoding"):
                    meeting = Meeting(node, what, operand[0], value, there[0], there[1])
                    self.facts.left_behind.setdefault((node, operand[0]), meeting)

    def leave_unmoved(self, node: cst.CSTNode, what: str, given: Operand, there: Operand) -> None:
        """``def step(x): criterion(net(x.to(device)), x)``: what was handed in comes to what is on a device."""
        value = given[1]
        if type(value.origin) is not cst.Param or (value.kind != TENSOR and value.kind != UNKNOWN_KIND):
            return
        if self.dead or self.function is None or value.place.is_there or value.place.is_host:
            return
        if value.origin in self.function.params:
            self.facts.unmoved.setdefault((node, given[0]), Meeting(node, what, *given, *there))

    def met(self, node: cst.CSTNode, what: str, host: Operand, there: Operand) -> None:
        """An operand on the host meets one on a device, in an operation that refuses that."""
        if self.dead:
            return
        key = (node, host[0])
        if key not in self.facts.meetings:
            self.facts.meetings[key] = Meeting(node, what, host[0], host[1], there[0], there[1])

    def assume(self, node: cst.CSTNode, what: str, host: Operand, given: Operand) -> None:
        """What is made on the host meets what the function was handed: wrong where that is on a device."""
        if not self.dead and isinstance(host[1].origin, cst.CSTNode) and host[1].attr is None:
            self.facts.assumed.setdefault((node, host[0]), Meeting(node, what, host[0], host[1], given[0], given[1]))

    def suppose(self, node: cst.CSTNode, what: str, host: Operand, other: Operand) -> None:
        """Likewise with what is made of that, ``pad(x)``, though nobody knows where."""
        origin = made_of(other[1])
        if origin is None or self.dead or not isinstance(host[1].origin, cst.CSTNode) or host[1].attr is not None:
            return
        if self.function is not None and origin.place.scope == self.function.scope:
            meeting = Meeting(node, what, host[0], host[1], other[0], origin)
            self.facts.supposed.setdefault((node, host[0]), meeting)

    def beside(self, node: cst.CSTNode, what: str, fixed: Operand, given: Operand) -> None:
        """What is on one kind of device meets what the function was handed: wrong where that is on another."""
        if self.dead or self.function is None or given[1].place.kind not in ("param", "device"):
            return
        if given[1].place.scope == self.function.scope and fixed[1].origin is not None:
            meeting = Meeting(node, what, fixed[0], fixed[1], given[0], given[1])
            self.facts.beside.setdefault(fixed[1].origin, meeting)

    def gives_back(self, node: cst.BaseExpression, value: Value, part: int | None = None) -> None:
        """``return x``: what is made on the host on one path is no match for what follows the input on another; nor is
        one ``part`` of several for the same one elsewhere."""
        if isinstance(node, cst.IfExp):
            if hypothesis.truth(self, node.test) is None:
                for side in (node.body, node.orelse):
                    self.gives_back(side, self.values.get(side, UNKNOWN), part)
            return
        if isinstance(node, cst.Tuple) and part is None:
            for position, each in enumerate(node.elements):
                self.gives_back(each.value, self.values.get(each.value, UNKNOWN), position)
            return
        if value.or_host is not None:
            self._gives_back_either(node, *value.or_host)
        if value.kind != TENSOR and (value.kind != THING or value.ref == "moved"):
            return
        if value.kind == TENSOR and value.place.is_host and value.origin in self.filled:
            target, filled = self.filled[value.origin]
            self.facts.given_back.setdefault((node, target), Meeting(target, "a copy", node, value, target, filled))
        if value.kind == THING and self.values.get(value.origin, UNKNOWN).kind == THING:  # type: ignore[arg-type]
            return  # return state.mask   part of a structure handed in, which may be on the host as well
        for other_part, other_node, other, env in self.given_back:
            if part != other_part:
                continue
            for host, there, at_host in (
                ((node, value), (other_node, other), self.env),
                ((other_node, other), (node, value), env),
            ):
                made_here = host[1].kind == TENSOR and host[1].place.is_host and host[1].attr is None
                # return torch.tensor(0.0)   mixes with anything but in `torch.stack` and where processes reduce it
                is_number = host[1].zero is True
                if (
                    made_here
                    and not (is_number and there[1].zero is False)
                    and (there[1].place.is_there or there[1].place.kind == "param")
                    and _is_tensor_in(at_host, there[1].origin)
                ):
                    self.facts.given_back.setdefault((host[0], there[0]), Meeting(host[0], "a result", *host, *there))
        self.given_back.append((part, node, value, self.env))

    def _gives_back_either(self, node: cst.BaseExpression, made: Value, test: cst.CSTNode, other: Value) -> None:
        """``if loss > 1: loss = torch.tensor([1.0])``, and then ``return loss``."""
        asked = self.scope.source.code(test)
        origin = made_of(other)
        if origin is not None and origin.origin is not None and self.values.get(origin.origin, UNKNOWN).is_tensor:
            other = origin  # loss = self.compare(x); if loss.item() > 1: loss = torch.tensor([1.0])
        # if rows is None: rows = torch.zeros(3)   has no rows to follow
        absent = any(f"{other.place.name} is {none}" in asked for none in ("None", "not None"))
        chosen = absent or hypothesis.asks_for_device(asked)
        moved = other.origin in self.facts.moves  # if device is not None: rows = rows.to(device)
        if self._is_handed(other) and not chosen and not moved and not self.dead:
            self.facts.given_back.setdefault((node, node), Meeting(node, "a result", node, made, node, other))

    def fills(self, target: cst.Subscript, old: Value, new: Value) -> None:
        """``found = [torch.zeros(0, 6)] * n; found[i] = x[keep]``: elements that are left as they are stay behind."""
        made = old.origin
        if self.dead or old.kind != TENSOR or new.kind != TENSOR or not isinstance(made, cst.Call):
            return
        if old.place.is_host and old.attr is None and (new.place.is_there or new.place.kind == "param"):
            meeting = Meeting(target, "a list", made, old, target, new)
            self.facts.given_back.setdefault((made, target), meeting)

    def _is_handed(self, value: Value) -> bool:
        return value.kind in (TENSOR, THING) and (value.place.is_there or value.place.kind == "param")

    def copies_into(self, target: cst.Subscript, into: Value, value: Value) -> None:
        """``padded = torch.zeros(x.shape + (2,)); padded[..., 0] = x``: what follows the input stays on the host."""
        if self.dead or into.attr is not None or not into.place.is_host or not self._is_handed(value):
            return
        if isinstance(into.origin, cst.Call):
            self.filled.setdefault(into.origin, (target, value))

    def meet_index(self, node: cst.CSTNode, base: Operand, index: Operand) -> None:
        """Device tensors may be indexed by host indices, not the other way round."""
        if base[1].kind != TENSOR or index[1].kind != TENSOR or index[1].zero is not False:
            return
        if base[1].place.is_host:
            self.refuse(node, "indexing", base, index)
        elif index[1].place.kind == "fixed":
            self.beside(node, "indexing", index, base)

    def note_indexed(self, base: Value, indices: Sequence[Operand]) -> None:
        """``def pick(table, t): return table[t]``: whatever the two are, callers know."""
        if self.dead or self.function is None or not isinstance(base.origin, cst.Param):
            return
        for _, index in indices:
            if isinstance(index.origin, cst.Param):
                self.indexed[(base.origin.name.value, index.origin.name.value)] = None

    def meet_put(self, node: cst.CSTNode, base: Operand, put: Operand) -> None:
        """``ranks[order] = torch.arange(n)``: torch moves a single number there, and nothing else."""
        if base[1].kind != TENSOR or put[1].kind != TENSOR or put[1].zero is not False or not put[1].place.is_host:
            return
        self.refuse(node, "an assignment", put, base)

    def refuse(self, node: cst.CSTNode, what: str, host: Operand, other: Operand) -> None:
        """What is on the host meets what is on a device, or is one where the function was handed it there."""
        if other[1].place.is_there:
            self.met(node, what, host, other)
        elif other[1].place.kind == "param":
            self.assume(node, what, host, other)
        else:
            self.suppose(node, what, host, other)

    def constrain(self, a: Operand, b: Operand) -> None:
        """Two values must be at one place; a caller that knows both may see that they are not."""
        if self.dead or self.function is None:
            return
        if a[1].text == ROW or b[1].text == ROW:
            return  # def shift(x, box): return x - box[0]   the caller's box has dimensions, its items may have none
        scopes = {self.function.scope}
        if self.cls is not None:
            scopes.add(self.cls.scope)
        if self.at_return is None:
            scopes.add(0)  # `DEVICE` of the file, unless an earlier `if quick: return net(x)` may have left
        if a[1].place.scope in scopes and b[1].place.scope in scopes and a[1].place != b[1].place:
            places = (a[1].place, b[1].place)
            if not self.conditional:
                self.constraints.append(places)
            elif places not in self.perhaps and not self._is_asked(a[0]):
                self.perhaps[places] = None

    def _is_asked(self, node: cst.CSTNode) -> bool:
        """Whether a test around a node asks for a device: ``if pad.device == x.device:``"""
        above = self.scope.source.parents.get(node)
        while above is not None and type(above) is not cst.FunctionDef:
            if isinstance(above, cst.If | cst.IfExp) and hypothesis.asks_for_device(tree.words(above.test)):
                return True
            above = self.scope.source.parents.get(above)
        return False

    def wait(self, node: cst.CSTNode, what: str, operand: cst.BaseExpression, value: Value, explicit: bool) -> None:
        """The host reads a value: it waits where that is on a device, and may come too early where it is on its way."""
        if not value.place.is_there:
            copies.read(self, node, value)
        if self.dead or not value.holds_tensors or not value.place.is_there:
            return
        copies.may_be_done(self)
        self.facts.waits[node] = Wait(node, what, operand, value, explicit)

    def truth_tested(self, node: cst.BaseExpression, value: Value) -> None:
        """``if t``, ``not t``, ``t and u``: torch reads the value."""
        if value.kind == TENSOR:
            self.wait(node, "bool", node, value, explicit=False)

    # parameters ---------------------------------------------------------------------------------

    def bind_parameters(self) -> None:
        """Give every parameter of the function the value its annotation, name, use and role suggest."""
        function, env = self.function, self.env
        assert function is not None and env is not None
        params = function.positional
        if function.takes_self and params:
            owner = function.cls
            assert owner is not None
            first = params[0].name.value
            if function.is_classmethod:
                env[first] = Value(CLASS, ref=owner)
            else:
                env[first] = Value(SELF, self.self_place, ref=owner)
        fed = self._fed_tensors() if function.fed else frozenset()
        for param in function.params:
            name = param.name.value
            if name not in env:
                value = self._parameter(param, fed)
                if value.kind == UNKNOWN_KIND and param.annotation is None and _is_absent(param.default):
                    value = UNKNOWN.but(items=Value(TENSOR, self._parameter_place(name), param), origin=param)
                env[name] = self.values[param] = value
        node_params = function.node.params
        if isinstance(node_params.star_arg, cst.Param):
            env[node_params.star_arg.name.value] = UNKNOWN
        if node_params.star_kwarg is not None:
            env[node_params.star_kwarg.name.value] = UNKNOWN

    def redirect_by_decorator(self) -> None:
        """``@torch.device("cuda")`` makes that the default device of the whole function; ``@torch.no_grad()``."""
        assert self.function is not None and self.env is not None
        names = {
            self.scope.qualified(d.decorator.func)
            for d in self.function.node.decorators
            if isinstance(d.decorator, cst.Call)
        }
        if "torch.device" in names:
            self.env[DEFAULT_PLACE] = Value(DEVICE)
        if names & _RECORD_NOTHING:
            self.env[NO_GRAD] = HOST_DATA

    def _fed_tensors(self) -> frozenset[str]:
        """Names handed to a torch layer that ``self`` holds."""
        assert self.function is not None
        if self.cls is None or not self.cls.is_module:
            return frozenset()
        found = set()
        for attr, name in self.function.fed:
            value = self.flow.attribute_of(self.cls, attr)
            if value is not None and value.kind == MODULE and isinstance(value.ref, str):
                found.add(name)
        return frozenset(found)

    def _is_handed_on(self, name: str) -> bool:
        """Whether a function of the file that is handed the parameter on does with it what is done with tensors."""
        assert self.function is not None
        if name in self.function.assigned or self.function.attributes.get(name):
            return False
        for callee, place in self.function.handed_on.get(name, ()):
            function = self.scope.function_names.get(callee)
            if function is None or function is self.function:
                continue
            if isinstance(place, int):
                place = function.positional[place].name.value if place < len(function.positional) else ""
            param = function.param(place)
            if param is not None and param.annotation is None and function.is_tensor_by_use(place):
                return True
        return False

    def _parameter(self, param: cst.Param, fed: frozenset[str]) -> Value:
        """What a parameter is taken to be."""
        function = self.function
        assert function is not None
        name = param.name.value
        types = annotation_names(param.annotation.annotation) if param.annotation is not None else []
        tails = {t.rpartition(".")[2] for t in types} - {"None"}
        place = self._parameter_place(name)
        if types and is_tensor_annotation(param.annotation):
            zero = None if name in _MAYBE_SCALARS else False
            return Value(TENSOR, place, param, zero=zero) if len(tails) == 1 else Value(THING, place, param)
        if types and is_list_of_tensors(param.annotation):
            return Value(LIST, items=Value(TENSOR, place, param))
        if types and is_dict_of_tensors(param.annotation):
            return Value(DICT, items={"*": Value(TENSOR, place, param)})
        default = param.default
        if hypothesis.names_device(name) and not tails & {"bool", "int"} and not _is_constant(default, "True", "False"):
            return Value(DEVICE, self.symbol(name), param, ref=self._device_form(param))
        if types and (form := self._device_form(param)) is not None:
            return Value(DEVICE, Place("param", name, self.id), param, ref=form)  # `offload_device`: any
        if tails and tails <= {"int", "float", "str", "bool", "bytes", "Path", "int[]", "ndarray", "complex"}:
            return Value(DATA, HOST)
        if "ndarray" in tails:
            return UNKNOWN if len(tails) > 1 else Value(ARRAY, HOST)
        if name in function.loaders:
            return function.loaders[name]
        if not types and name in function.documented and name not in function.converted and _is_absent(default):
            return Value(TENSOR, place, param, zero=None if name in _MAYBE_SCALARS else False)
        if "DataLoader" in tails or (not types and hypothesis.LOADER_NAME.search(name)):
            return Value(LOADER, UNKNOWN_PLACE, param)
        if len(tails) == 1 and (made_of := self._module_type(types[0])) is not None:
            return Value(MODULE, self._module_parameter_place(name), param, obj=param, ref=made_of or None)
        if "Optimizer" in tails or (not types and hypothesis.OPTIMIZER_NAME.search(name)):
            return Value(OPTIMIZER, UNKNOWN_PLACE, param)
        if (
            not types
            and hypothesis.MODEL_NAME.match(name)
            and (function.is_module_by_use(name) or name in function.called)
        ):
            return Value(MODULE, self._module_parameter_place(name), param, obj=param)
        if isinstance(default, cst.SimpleString | cst.Integer | cst.Float) or _is_constant(default, "True", "False"):
            return UNKNOWN if not function.is_tensor_by_use(name) else Value(THING, UNKNOWN_PLACE, param)
        if types:
            return UNKNOWN
        if function.is_module_by_use(name) and not function.is_tensor_by_use(name):
            return Value(MODULE, self._module_parameter_place(name), param, obj=param)
        if function.has_parts(name):
            return UNKNOWN  # new.weight = old.weight; for part in new.named_modules(): ...
        if name in fed or name in function.hints or function.is_tensor_by_use(name) or self._is_handed_on(name):
            sized = function.attributes.get(name, _NONE) & {"size", "shape", "dim", "ndim"}
            return Value(TENSOR, place, param, zero=False if sized or name not in _MAYBE_SCALARS else None)
        if self.role == DEVICE_SIDE and self.cls is not None and self.cls.is_module:
            # the arguments of forward are tensors, or lists and dicts of them
            # (x - scaling.mean) / scaling.std   is no tensor's
            methods = function.methods.get(name, _NONE) & _ARRAY_METHODS
            if hypothesis.MODEL_NAME.match(name):
                methods -= {"to"}  # def update(self, ma_model, device): ma_model.to(device)
            if methods or function.attributes.get(name, _NONE) & _ARRAY_ATTRIBUTES:
                return Value(TENSOR, place, param, zero=False)
            if name in _FORWARD_NAMES and (default is None or _is_constant(default, "None")):
                return Value(THING, place, param)
        if self.role in (DEVICE_SIDE, HOST_SIDE) and name in ("batch", "samples", "examples", "items"):
            return Value(THING, place, param)
        return UNKNOWN

    def parts_of_parameter(self, name: str, target: cst.BaseExpression) -> Value | None:
        """``features, lengths = given``: those of what is handed in that are used as tensors are handed in, too."""
        function = self.function
        assert function is not None
        if type(target) is not cst.Tuple or name not in function.param_names or name in function.assigned:
            return None
        names = [item.value.value if type(item.value) is cst.Name else "" for item in target.elements]
        if self.role == HOST_SIDE or not any(function.is_tensor_by_use(each) for each in names if each):
            return None
        place = self._parameter_place(name)
        origin = next(param for param in function.params if param.name.value == name)
        parts = [
            Value(TENSOR, place, origin) if each and function.is_tensor_by_use(each) else UNKNOWN for each in names
        ]
        return Value(TUPLE, items=parts)

    def _module_type(self, name: str) -> Class | str | None:
        """The class of modules that an annotation names, empty for any; ``None`` where it names none."""
        cls = self.scope.class_names.get(name)
        if cls is not None:
            return cls if cls.is_module else None
        head, dot, rest = name.partition(".")
        qualified = self.scope.imports.get(head, head) + dot + rest
        if qualified in table.MODULES and table.MODULES[qualified].kind != "container":
            return qualified
        if name.rpartition(".")[2] == "Module" or qualified in table.MODULES:
            return ""
        if not self.flow.names_module(qualified):
            return None
        unit = self.flow.followed(qualified)
        return unit.cls or "" if unit is not None else ""

    def _device_form(self, param: cst.Param) -> str | None:
        """Whether a parameter is a ``torch.device``, as annotated, or perhaps a string."""
        default = param.default
        if param.annotation is None or isinstance(default, cst.SimpleString):
            return None  # a default that is a string says more than the annotation
        known = self.scope.qualified_names(param.annotation)
        if known == {"torch.device"}:
            # def __init__(self, device: torch.device = DEVICE)   of a file with DEVICE = "cuda"
            is_named = isinstance(default, cst.Name | cst.Attribute) and dotted(default) != "None"
            return OBJECT_OR_TEXT if is_named else OBJECT
        return OBJECT_OR_TEXT if known == {"torch.device", "str"} else None

    def _parameter_place(self, name: str) -> Place:
        """Where a tensor handed in as ``name`` lives."""
        function = self.function
        assert function is not None
        if self.role == HOST_SIDE:
            return HOST
        if name in self.scope.packed_by:
            return UNKNOWN_PLACE
        if self.role == DEVICE_SIDE and function.hints.get(name) != "elsewhere":
            return Place("device", name, function.scope)
        return Place("param", name, function.scope)

    def _module_parameter_place(self, name: str) -> Place:
        """Where a module handed in as ``name`` lives."""
        function = self.function
        assert function is not None
        if self.role in (HOST_SIDE, CONSTRUCTOR):
            return UNKNOWN_PLACE
        if function.attributes.get(name, _NONE) & {"to", "cuda", "cpu"}:
            return UNKNOWN_PLACE  # the function moves it itself
        # a function that never speaks of a device runs wherever its caller put the model
        there = function.device_aware or (self.role == DEVICE_SIDE and self.cls is not None and self.cls.is_module)
        return Place("device" if there else "param", name, function.scope)

    # joins --------------------------------------------------------------------------------------

    def merge(self, a: Env | None, b: Env | None, test: cst.CSTNode | None = None) -> Env | None:
        """The environment after two paths meet; those of ``if test:``, where that is given."""
        if a is None:
            return b
        if b is None or a is b:
            return a
        merged = dict(a)
        for key, value in b.items():
            mine = merged.get(key)
            if mine is None:
                if "." in key or "[" in key:
                    merged[key] = _half_known(value, self._before_path(key), test)
                elif key == DEFAULT_PLACE:
                    merged[key] = Value(DEVICE)
                elif key == NO_GRAD or self._is_global(key):
                    merged[key] = UNKNOWN
                else:
                    merged[key] = value
            elif mine is not value:
                together = join(mine, value) if test is None else branched(mine, value, test)
                is_choice = together.kind == DEVICE and mine.place.is_host != value.place.is_host
                if is_choice and together.place == SOMEWHERE and key != DEFAULT_PLACE:
                    together = together.but(place=self.symbol(key))  # the one that the test chose
                merged[key] = together
        if len(b) != len(merged):
            for key in a:
                if key not in b:
                    if "." in key or "[" in key:
                        merged[key] = _half_known(a[key], self._before_path(key), test)
                    elif key == DEFAULT_PLACE:
                        merged[key] = Value(DEVICE)
                    elif key == NO_GRAD or self._is_global(key):
                        merged[key] = UNKNOWN
        return merged

    def _is_global(self, name: str) -> bool:
        """Whether a name outlives the call: where this one does not bind it, an earlier one may have."""
        return self.function is not None and name in self.function.globals

    def _before_path(self, key: str) -> Value:
        """What a path held before either branch bound it: what its class says of it, or nothing known."""
        head, _, attr = key.partition(".")
        if head == "self" and self.cls is not None and "." not in attr and "[" not in attr:
            value = self.flow.attribute_at_use(self.cls, attr, self)
            if value is not None:
                return value
        return UNKNOWN


def _half_known(value: Value, before: Value, test: cst.CSTNode | None) -> Value:
    if before.kind == UNKNOWN_KIND:
        if value.kind in (TENSOR, THING, MODULE):
            return value.but(place=UNKNOWN_PLACE, zero=False, obj=None, pinned=None)
        if value.kind in (LIST, TUPLE, DICT, INSTANCE, LOADER):
            return UNKNOWN
        return value
    # if self.last.size(0) != n: self.last = torch.zeros(n)   where it was a buffer
    return join(before, value) if test is None else branched(before, value, test)


def _is_tensor_in(env: Env | None, origin: cst.CSTNode | None) -> bool:
    """Whether the parameter that something comes from is a tensor on this path, too:
    ``if isinstance(x, torch.Tensor): return x`` leaves numbers for ``return torch.tensor([x])``."""
    if env is None or not isinstance(origin, cst.Param):
        return True
    value = env.get(origin.name.value)
    return value is None or value.kind not in (UNKNOWN_KIND, NONE, DATA)


def _last_word(key: str) -> str:
    """``device`` of ``self.device`` and of ``config['device']``."""
    return key.rpartition(".")[2].rpartition("[")[2].strip("]'\"")


def _is_absent(default: cst.BaseExpression | None) -> bool:
    return default is None or _is_constant(default, "None")


def _is_constant(node: cst.BaseExpression | None, *names: str) -> bool:
    return type(node) is cst.Name and node.value in names


def parameters_in(value: Value) -> list[Value]:
    """The ``.parameters()`` values inside an argument of an optimizer, however they are wrapped."""
    kind = value.kind
    if kind == PARAMS or (kind == TENSOR and value.obj is not None):
        return [value]
    if kind == LIST and isinstance(value.ref, tuple):
        return [p for item in value.ref for p in parameters_in(item)]
    if kind == LIST and value.items is not None:
        return parameters_in(value.items)
    if kind == TUPLE:
        return [p for item in value.items for p in parameters_in(item)]
    if kind == DICT:
        return [p for item in value.items.values() for p in parameters_in(item)]
    return []
