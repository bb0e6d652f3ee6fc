"""What a file declares, before anything is evaluated: imports, classes, functions, and their roles."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

import libcst as cst

from devlint import tree
from devlint.flow import evidence
from devlint.flow import outside as packages
from devlint.flow import torch_table as table
from devlint.flow.docstrings import tensors_named
from devlint.flow.hypothesis import names_device
from devlint.flow.names import (
    annotated,
    annotation_names,
    dotted,
    imported,
    imported_from,
    is_tensor_annotation,
    names_bound,
    targets_in,
)
from devlint.flow.value import Value
from devlint.source import Source

if TYPE_CHECKING:
    from devlint.flow import Flow, Summary
    from devlint.index import View

# roles
MAIN, DEVICE_SIDE, HOST_SIDE, CONSTRUCTOR, PLAIN = "main", "device", "host", "constructor", "plain"

_CONSTRUCTORS = frozenset(
    "__init__ __new__ __post_init__ reset_parameters init_weights _init_weights initialize_weights reset_params "
    "_reset_parameters __init_subclass__ __setstate__ setup build configure_optimizers from_pretrained from_config "
    "load_state_dict _load_from_state_dict load_weights load_pretrained init_weight __repr__ extra_repr __str__ "
    "__getstate__ __deepcopy__ state_dict train_dataloader val_dataloader test_dataloader prepare_data "
    "predict_dataloader __len__ post_init append extend insert".split()
)
_STEPS = frozenset(
    "training_step validation_step test_step predict_step _step shared_step train_step eval_step forward_step "
    "compute_loss".split()
)
_HOST_CLASS = re.compile(
    r"(Dataset|Collat|Transform(?!er)|Augment|Tokeniz|DataModule|Reader|Sampler$|LoadImages|LoadStreams)"
)
#: Methods of modules, and of the transforms of distributions.
_COMPUTES = frozenset({"forward", "log_abs_det_jacobian"})
_HOST_FUNCTION = re.compile(r"(collate|worker_init|_transform(?!er)|preprocess|tokenize|load_data|augment)")
_DEVICE_FUNCTION = re.compile(r"(^|_)(loss|criterion|penalty|train_step|training_step|train_one_epoch)(_|$)")
_TENSOR_ATTRIBUTES = frozenset({"requires_grad", "grad", "is_cuda"})
#: They count where they are called: ``model.dim`` is a number that somebody keeps.
_TENSOR_METHODS = frozenset(
    "unsqueeze squeeze permute contiguous masked_fill masked_fill_ new_zeros new_ones new_tensor new_full new_empty "
    "detach clone expand expand_as view view_as softmax log_softmax sigmoid "
    "type_as chunk unbind index_select gather scatter_ bmm matmul mm long "
    "backward clamp clamp_ unfold flatten argmax topk narrow cumsum repeat_interleave is_floating_point storage "
    "new log_ exp_ size() zero_ fill_ copy_ mul_ add_ div_ sub_ numel nelement dim item data_ptr".split()
)
#: An array of numpy, a dtype and a module have none of these.
_OF_TENSORS_ONLY = frozenset("unsqueeze masked_fill permute detach expand new_zeros contiguous".split())
_SIZE_METHODS = frozenset({"size", "dim"})
_MODULE_METHODS = frozenset(
    "parameters named_parameters eval train state_dict load_state_dict modules named_modules children named_children "
    "zero_grad requires_grad_ buffers".split()
)
_OF_MODULES_ONLY = frozenset(
    "parameters named_parameters state_dict load_state_dict modules named_modules children named_children "
    "buffers".split()
)


#: Bases of which every attribute is known.
BARE_BASES = frozenset({"object", "torch.nn.Module"})
_NUMBERS = itertools.count(1)  # of functions and classes, through all files


class Function:
    """A ``def`` of the file. ``scope`` identifies it in places; ``home`` is the flow that follows it."""

    home: Flow

    def __init__(self, node: cst.FunctionDef, cls: Class | None, outer: Function | None) -> None:
        self.node, self.cls, self.outer = node, cls, outer
        self.name = node.name.value
        self.scope = next(_NUMBERS)
        self.role = PLAIN
        self.decorators = decorators(node)
        self.is_replaced = not all(_keeps_function(d) for d in self.decorators)
        self.is_kernel = any(d in _OF_KERNELS for d in self.decorators)
        self.is_property = any(d and d.rpartition(".")[2] in ("property", "cached_property") for d in self.decorators)
        self.is_static = "staticmethod" in self.decorators
        self.is_classmethod = "classmethod" in self.decorators
        self.attributes: dict[str, set[str]] = {}  # name -> attributes read from it
        self.methods: dict[str, set[str]] = {}  # name -> those of them that it calls
        self.converted: set[str] = set()  # names that it makes tensors of: x = torch.tensor(x)
        self.called_with: set[str] = set()  # names handed first to a torch function
        self.fed: list[tuple[str, str]] = []  # (a, x) for each self.a(x)
        self.handed_on: dict[str, list[tuple[str, int | str]]] = {}  # x: (f, place or keyword) for each f(x)
        self.called: set[str] = set()  # names called themselves
        self.calls: set[str] = set()  # plain functions called
        self.self_calls: set[str] = set()  # methods of self called, or handed over
        self.assigned: set[str] = set()
        self.stores: set[str] = set()  # attributes of self that it sets
        self.globals: set[str] = set()
        self.shared: set[str] = set()  # its variables that a function inside it writes
        self.device_aware = False
        self.is_generator = False
        self.sets_by_variable = False
        self.moves: set[str] = set()  # attributes of self that it calls .to() or the like on
        self.moves_something = False  # calls .to() or the like on anything
        self.passed: set[str] = set()  # names handed to calls
        self.rows: dict[str, set[str]] = {}  # names that loops go through, and what they call each element
        self.items_set: set[str] = set()  # names of which items are set
        self.hints: dict[str, str] = {}  # parameters that callers hand tensors to: "there", "elsewhere"
        self.handed_host: set[str] = set()  # parameters that some caller hands tensors on the host to
        self.handed_parts: set[str] = set()  # those that some caller hands parts of what nobody knows to: state.mask
        self.loaders: dict[str, Value] = {}  # parameters that callers hand loaders of the file to
        self.handed_modules: dict[str, set[Class]] = {}  # parameters that callers hand modules of the project to
        self.waits: dict[bool, bool] = {}  # whether each call waits, once asked: by `needed`
        self.summary: Summary | None = None  # once it has been followed

    @property
    def is_step(self) -> bool:
        """A training step, or the like: it is handed batches that have been moved."""
        return self.name in _STEPS

    @property
    def attribute_words(self) -> set[str]:
        """Every attribute name read anywhere in the function."""
        return {word for words in self.attributes.values() for word in words}

    @property
    def param_names(self) -> frozenset[str]:
        """The names of :attr:`params`."""
        return frozenset(param.name.value for param in self.params)

    @property
    def params(self) -> list[cst.Param]:
        """All parameters but ``*args`` and ``**kwargs``."""
        p = self.node.params
        return [*p.posonly_params, *p.params, *p.kwonly_params]

    @property
    def positional(self) -> list[cst.Param]:
        """The parameters that arguments without a name are for."""
        p = self.node.params
        return [*p.posonly_params, *p.params]

    @property
    def outwards(self) -> Iterator[Function]:
        """The function, and those around it, the innermost first."""
        around: Function | None = self
        while around is not None:
            yield around
            around = around.outer

    @property
    def takes_self(self) -> bool:
        """Whether the first parameter is the object, or the class."""
        return self.cls is not None and not self.is_static and bool(self.positional)

    @property
    def is_told_device(self) -> bool:
        """Whether it is handed a device beside whatever else it is handed."""
        return any(names_device(param.name.value) for param in self.params)

    def is_tensor_by_use(self, name: str) -> bool:
        """Whether the function does with a name what is done with tensors."""
        attributes, methods = self.attributes.get(name, _NO_NAMES), self.methods.get(name, _NO_NAMES)
        if name in self.converted:
            return False
        # image.size, net.dim: a tensor has methods of these names, and who forgets to call one calls others
        if (attributes - methods) & _SIZE_METHODS and not self.is_tensor_by_methods(name):
            return False
        if "device" in attributes and attributes & _OF_ARRAYS:
            return True  # an array has no device, a module no shape
        if "[,]" in attributes and any(
            "device" in self.attributes.get(each, _NO_NAMES) for each in self.rows.get(name, ())
        ):
            return True
        return name in self.called_with or bool(attributes & _TENSOR_ATTRIBUTES or methods & _TENSOR_METHODS)

    @cached_property
    def documented(self) -> frozenset[str]:
        """The parameters that the docstring says are tensors."""
        return tensors_named(self.node) & self.param_names

    @cached_property
    def rebuilds(self) -> bool:
        """Whether it makes tensors of names on a device that it is told: ``torch.as_tensor(x, device=self.device)``."""
        return self.device_aware and any(
            isinstance(node, cst.Call)
            and dotted(node.func).rpartition(".")[2] in ("as_tensor", "asarray", "tensor")
            and any(arg.keyword is not None and arg.keyword.value == "device" for arg in node.args)
            and isinstance(node.args[0].value, cst.Name)
            for node in tree.walk(self.node.body)
        )

    @cached_property
    def devices_by_default(self) -> frozenset[str]:
        """The devices that are ``None`` unless told, and that nothing asks about, so that what is made without one is
        on the host: ``def initial(self, n, device=None): return torch.zeros(n, device=device)``."""
        found = {
            param.name.value
            for param in self.params
            if isinstance(param.default, cst.Name)
            and param.default.value == "None"
            and names_device(param.name.value)
            and param.name.value not in self.assigned
        }
        if not found or self.moves_something:
            return frozenset()
        asks = (cst.If, cst.IfExp, cst.BooleanOperation, cst.Comparison, cst.Assert)
        asked = (node for node in tree.walk(self.node.body) if isinstance(node, asks))
        return frozenset(
            found - {each.value for node in asked for each in tree.walk(node) if isinstance(each, cst.Name)}
        )

    def param(self, name: str) -> cst.Param | None:
        """The parameter of that name."""
        return next((param for param in self.params if param.name.value == name), None)

    def is_tensor_by_methods(self, name: str) -> bool:
        """Whether the function calls a method on a name that nothing but a tensor has."""
        return bool(self.methods.get(name, _NO_NAMES) & _OF_TENSORS_ONLY)

    def has_parts(self, name: str) -> bool:
        """Whether the function asks for the parts of what a name holds, as no tensor has any."""
        return bool(self.attributes.get(name, _NO_NAMES) & _OF_MODULES_ONLY)

    def is_sized(self, name: str) -> bool:
        """Whether the function asks for the size of what a name holds: a tensor, or an array."""
        return bool(self.attributes.get(name, _NO_NAMES) & _SIZES)

    def is_module_by_use(self, name: str) -> bool:
        """Whether the function does with a name what is done with modules."""
        methods = self.methods.get(name, _NO_NAMES)  # args.train, args.eval: flags
        return bool(methods & _MODULE_METHODS) and (name in self.called or "parameters" in methods or "eval" in methods)


_NO_NAMES: set[str] = set()
_OF_ARRAYS = frozenset("[,] shape ndim T".split())
_SIZES = frozenset("[,] size shape ndim dim numel reshape view".split())

#: Decorators that leave what the function does and gives.
_HARMLESS_DECORATORS = frozenset(
    "staticmethod classmethod abstractmethod property cached_property lru_cache cache setter override final overload "
    "wraps jit script compile profile record_function main command option argument record register_model typechecked "
    "jaxtyped custom_fwd custom_bwd deprecated rank_zero_only contextmanager".split()
)


def decorators(node: cst.FunctionDef | cst.ClassDef) -> list[str]:
    """The names of the decorators, whether they are called there or not."""
    return [dotted(d.decorator.func if isinstance(d.decorator, cst.Call) else d.decorator) for d in node.decorators]


#: Of what is compiled for a device as a whole, and holds no tensors of torch: ``tl.load(row).to(tl.float32)``.
_OF_KERNELS = frozenset(
    "triton.jit triton.autotune triton.heuristics gluon.jit numba.jit numba.njit numba.cuda.jit nb.jit nb.njit njit "
    "cuda.jit ti.kernel ti.func taichi.kernel taichi.func wp.kernel wp.func warp.kernel warp.func cute.kernel cute.jit "
    "tilelang.jit helion.kernel".split()
)


def _keeps_function(decorator: str) -> bool:
    return decorator.startswith(("torch.", "nn.")) or decorator.rpartition(".")[2] in (
        _HARMLESS_DECORATORS | {"no_grad", "inference_mode", "enable_grad", "autocast", "device"}
    )


class Class:
    """A ``class`` of the file: its bases, methods, and what its attributes hold. ``home`` is the flow it belongs to."""

    home: Flow | None = None

    def __init__(self, node: cst.ClassDef) -> None:
        self.node = node
        self.name = node.name.value
        self.scope = next(_NUMBERS)
        self.sets_by_variable = False  # setattr(self, name, ...)
        self.bases: list[str] = []  # qualified, or the name of a class of the file
        self.local_bases: list[Class] = []
        self.project_bases: list[str] = []  # those that are classes of other files of the project
        self.learned_from: str | None = None  # the one of them that tells that it is a module
        self.methods: dict[str, Function] = {}
        self.attrs: dict[str, Value] = {}
        self.stores: dict[str, list[tuple[cst.CSTNode, Value, Function]]] = {}
        self.subclasses: list[Class] = []
        self.buffers_by_variable = False  # register_buffer(name, ...)
        self.waits: dict[bool, bool] = {}  # likewise, each call of such a module
        self.attrs_of_class: set[str] = set()  # bound in the class body
        self.tensor_fields = frozenset(_tensor_fields(node))  # annotated in the class body
        self.buffers: set[str] = set()  # registered as parameter or buffer
        self.list_states: set[str] = set()  # of a metric: lists of what `update` appends, which move with the metric
        self.host_states: set[str] = set()  # of these: those that it appends what is on the host to
        self.pending: dict[str, set[str]] = {}  # attribute -> methods not yet followed that set it
        self.pending_moves: dict[str, set[str]] = {}  # likewise, that may move the module it holds
        self.evaluated = False
        self.is_module = self.is_dataset = False
        self.of_unknown_base = False  # makes layers or registers tensors, and what its bases do with them is not known

    def find_method(self, name: str) -> Function | None:
        """The method of that name, of the class or the nearest base that has one, in whichever file."""
        for cls in self.lineage:
            if name in cls.methods:
                return cls.methods[name]
        heir = self.home.heir(self, name) if self.home is not None else None
        return heir.methods.get(name) if heir is not None else None

    def reached(self, method: Function) -> list[Function]:
        """A method, and those that it calls on the same object, directly or through others."""
        found = [method]
        for each in found:
            for name in sorted(each.self_calls):
                other = self.find_method(name)
                if other is not None and other not in found:
                    found.append(other)
        return found

    @cached_property
    def lineage(self) -> list[Class]:
        """The class and its bases in the file, in the order of attribute look-up; a ring of bases is cut."""
        done: list[Class] = []
        entered: set[Class] = set()
        todo: list[tuple[Class, bool]] = [(self, False)]
        while todo:
            cls, bases_done = todo.pop()
            if bases_done:
                done.append(cls)
            elif cls not in entered:
                entered.add(cls)
                todo.append((cls, True))
                todo += [(base, False) for base in cls.local_bases]  # the last base first: it comes later
        return done[::-1]

    @property
    def descendants(self) -> list[Class]:
        """The classes of the file below this one."""
        found: list[Class] = []
        todo = list(self.subclasses)
        while todo:
            cls = todo.pop()
            if cls not in found and cls is not self:
                found.append(cls)
                todo += cls.subclasses
        return found

    @property
    def known_whole(self) -> bool:
        """No base outside the file could define a method or attribute unseen."""
        return all(b in BARE_BASES or b.rpartition(".")[2] in packages.PLAIN_BASES for b in self.outside_bases)

    @property
    def outside_bases(self) -> set[str]:
        """The bases that are not of the file, of the class and of its own bases there."""
        return {base for cls in self.lineage for base in cls.bases} - {cls.name for cls in self.lineage}


class Scope:
    """All declarations of one file. ``project``: the files around it; ``around``: names bound around what it holds."""

    def __init__(
        self, source: Source, project: View | None = None, around: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.source, self.project = source, project
        self.imports: dict[str, str] = dict(around)
        self.stand_ins: set[str] = set()  # names that a call binds to torch, or to parts of it
        self.functions: dict[cst.FunctionDef, Function] = {}
        self.classes: dict[cst.ClassDef, Class] = {}
        self.globals_written: set[str] = set()
        self._qualified: dict[cst.BaseExpression, str] = {}
        self._wraps: bool | None = None
        self.outside_stores: set[str] = set()  # attributes set on something else than self
        self._read_imports()
        self._read_stars()
        self._read_bound()
        self._read_definitions()
        self._classify()
        self._assign_roles()

    # imports ------------------------------------------------------------------------------------

    @cached_property
    def packages(self) -> frozenset[str]:
        """The packages that the file imports anything from, by their first names: `torch` of `torch.nn`."""
        return frozenset(name.partition(".")[0] for name in self.imports.values())

    def _read_imports(self) -> None:
        for node in self.source.nodes_of(cst.Import):
            for alias, name in imported(node):
                self.imports.setdefault(alias, name)
        for import_from in self.source.nodes_of(cst.ImportFrom):
            for alias, name in imported(import_from):
                self.imports.setdefault(alias, name)

    def _read_stars(self) -> None:
        """``from models.common import *`` is how some projects come by ``torch`` and ``nn``."""
        stars = [node for node in self.source.nodes_of(cst.ImportFrom) if isinstance(node.names, cst.ImportStar)]
        if self.project is not None:
            for node in stars:
                package = imported_from(node)
                for name in self.project.starred(package):
                    self.imports.setdefault(name, f"{package}{'' if package.endswith('.') else '.'}{name}")
        if stars:
            for alias, name in _CUSTOMARY.items():
                self.imports.setdefault(alias, name)

    def _read_bound(self) -> None:
        """``torch, nn = try_import_torch()``, ``torch = importorskip("torch")``, ``nn = torch.nn``."""
        for node in self.source.nodes_of(cst.Assign):
            above = self.source.parents.get(node)
            line = self.source.parents.get(above) if above is not None else None
            if not isinstance(line, cst.Module) or len(node.targets) != 1:
                continue
            target = node.targets[0].target
            names = names_bound(target)
            if isinstance(node.value, cst.Call) and "torch" in names:
                for name in names & _CUSTOMARY.keys() - self.imports.keys():
                    self.imports[name] = _CUSTOMARY[name]
                    self.stand_ins.add(name)
            elif isinstance(node.value, cst.Attribute) and isinstance(target, cst.Name):
                path = dotted(node.value)
                if path.startswith("torch.") and self.imports.get("torch") == "torch" and path in _CUSTOMARY.values():
                    self.imports.setdefault(target.value, path)

    def qualified(self, node: cst.BaseExpression) -> str:
        """The qualified name of a dotted expression by the file's imports; as written where not imported."""
        known = self._qualified.get(node)
        if known is None:
            head, dot, rest = dotted(node).partition(".")
            known = self._qualified[node] = self.imports.get(head, head) + dot + rest
        return known

    def qualified_names(self, annotation: cst.Annotation) -> set[str]:
        """The qualified names of the types that an annotation allows, but for ``None``."""
        parts = [each.partition(".") for each in annotation_names(annotation.annotation) if each != "None"]
        return {self.imports.get(head, head) + dot + rest for head, dot, rest in parts}

    # definitions --------------------------------------------------------------------------------

    def _read_definitions(self) -> None:
        parents = self.source.parents
        for definition in self.source.nodes_of(cst.ClassDef):
            self.classes[definition] = Class(definition)
        for node in self.source.nodes_of(cst.FunctionDef):
            cls = outer = None
            above = parents.get(node)
            nearest = True
            while above is not None:
                if nearest and type(above) is cst.ClassDef:
                    cls, nearest = self.classes[above], False
                elif type(above) is cst.FunctionDef:
                    outer = self.functions.get(above)
                    break
                above = parents.get(above)
            function = Function(node, cls, outer)
            self.functions[node] = function
            if cls is not None:
                cls.methods.setdefault(function.name, function)
            evidence.read(function, self.imports)
            if cls is not None:
                for attr in function.stores:
                    cls.pending.setdefault(attr, set()).add(function.name)
                for attr in function.moves:
                    cls.pending_moves.setdefault(attr, set()).add(function.name)
                cls.sets_by_variable |= function.sets_by_variable
            self.globals_written |= function.globals
            if outer is not None:
                outer.shared |= function.globals
        self._read_outside_stores()
        self.class_names = {c.name: c for c in self.classes.values()}
        self.function_names: dict[str, Function] = {}
        for function in self.functions.values():
            if function.cls is None and function.outer is None:
                self.function_names.setdefault(function.name, function)

    def _read_outside_stores(self) -> None:
        nodes_of = self.source.nodes_of
        targets: list[cst.BaseExpression] = [node.target for node in nodes_of(cst.AssignTarget)]
        targets += [node.target for node in nodes_of(cst.AugAssign)]
        targets += [node.target for node in nodes_of(cst.AnnAssign)]
        targets += [node.target for node in nodes_of(cst.For)]
        targets += [node.target for node in nodes_of(cst.NamedExpr)]
        for target in targets:
            _outside_stores(target, self.outside_stores)
        for item in nodes_of(cst.AsName):
            _outside_stores(item.name, self.outside_stores)
        for call in nodes_of(cst.Call):
            if type(call.func) is cst.Name and call.func.value == "setattr" and len(call.args) == 3:
                holder, name = call.args[0].value, call.args[1].value
                if type(name) is cst.SimpleString and dotted(holder) != "self":
                    self.outside_stores.add(str(name.evaluated_value))

    def _classify(self) -> None:
        for cls in self.classes.values():
            for base in cls.node.bases:
                value = base.value
                if isinstance(value, cst.Subscript):
                    value = value.value
                name = self.qualified(value)
                if name:
                    cls.bases.append(name)
                local = self.class_names.get(name)
                if local is not None and local is not cls:
                    cls.local_bases.append(local)
                    local.subclasses.append(cls)
                elif name and self.project is not None and self.project.find(name) is not None:
                    cls.project_bases.append(name)
        for cls in self.classes.values():
            outside = {name for c in cls.lineage for name in c.bases}
            makes_layers = bool(outside) and (("forward" in cls.methods and _makes_layers(cls)) or _registers(cls))
            alone = is_module(outside) or makes_layers
            ends, known = outside, outside
            if self.project is not None:
                for known_base in [name for c in cls.lineage for name in c.project_bases]:
                    ancestry = self.project.ancestry(known_base)
                    if is_module(ancestry.outside) and not alone:
                        cls.learned_from = cls.learned_from or known_base
                    ends = ends - {known_base} | ancestry.outside
                    known = known | ancestry.known | ancestry.outside
            cls.is_dataset = _is_dataset(known)
            cls.is_module = is_module(ends) or makes_layers
            cls.of_unknown_base = cls.is_module and not is_module(ends)
            cls.buffers |= {name for base in ends for name in _registered_by(base)} - self.deleted

    @property
    def wraps_models(self) -> bool:
        """The file names a wrapper that moves the inputs of the model it wraps: DDP, accelerate's hooks."""
        if self._wraps is None:
            text = self.source.text
            self._wraps = any(word in text for word in _IN_WRAPPERS) and _WRAPPERS.search(text) is not None
        return self._wraps

    @cached_property
    def packed_by(self) -> set[str]:
        """Names of lengths that sequences are packed by, which have to be on the host: the file's other functions are
        handed the same."""
        if "pack_padded_sequence" not in self.source.text:
            return set()
        return {
            call.args[1].value.value
            for call in self.source.nodes_of(cst.Call)
            if len(call.args) > 1
            and dotted(call.func).rpartition(".")[2] == "pack_padded_sequence"
            and type(call.args[1].value) is cst.Name
        }

    @cached_property
    def deleted(self) -> set[str]:
        """The names of attributes that the file deletes, which nothing registers from then on: ``del self.weight``."""
        targets = (each for node in self.source.nodes_of(cst.Del) for each in targets_in(node.target))
        return {each.attr.value for each in targets if isinstance(each, cst.Attribute)}

    # roles --------------------------------------------------------------------------------------

    def _assign_roles(self) -> None:
        device: set[Function] = set()
        host: set[Function] = set()
        constructor: set[Function] = set()
        collates = self._handed_as("collate_fn") | self._handed_as("worker_init_fn") | self._handed_as("transform")
        building, hooks = self._for_constructors_only(), self.hooks
        for function in self.functions.values():
            cls, name = function.cls, function.name
            if name in hooks and (params := function.positional[function.takes_self :]):
                device.add(function)
                function.hints[params[0].name.value] = "there"
            elif _is_of_host(cls) or name in collates or (cls is None and _HOST_FUNCTION.search(name)):
                host.add(function)
            elif cls is not None and name in _CONSTRUCTORS:
                constructor.add(function)
            elif cls is not None and cls.is_module and not function.is_static and not function.is_classmethod:
                if name == "forward" or name in _STEPS or not (name.startswith("_") or name in building):
                    device.add(function)
            elif name in _STEPS or (
                _DEVICE_FUNCTION.search(name) and function.outer is None and not name.startswith("test_")
            ):  # def test_loss(self, input): the host is enough for a test
                device.add(function)
        reached_device, reached_host = self._reached(device), self._reached(host)
        reached_constructor = self._reached(constructor)
        for function in self.functions.values():
            if function in device:
                function.role = DEVICE_SIDE
            elif function in host:
                function.role = HOST_SIDE
            elif function in constructor:
                function.role = CONSTRUCTOR
            elif function in reached_host:
                function.role = HOST_SIDE if function not in reached_device else PLAIN
            elif function in reached_constructor:
                function.role = CONSTRUCTOR if function not in reached_device else PLAIN
            elif function in reached_device:
                function.role = DEVICE_SIDE
            elif function.outer is not None:
                function.role = function.outer.role

    def _for_constructors_only(self) -> set[str]:
        """Methods that the file calls in constructors only: ``self.width = self.find_width(size)``."""
        constructors = {f.node for f in self.functions.values() if f.cls is not None and f.name in _CONSTRUCTORS}
        called = {name for node in constructors for name in self.functions[node].self_calls}
        called |= {name.rpartition(".")[2] for node in constructors for name in self.functions[node].calls}
        called &= {f.name for f in self.functions.values() if f.cls is not None and f.name not in _CONSTRUCTORS}
        if not called:
            return called
        parents = self.source.parents
        for node in self.source.nodes_of(cst.Attribute):
            name = node.attr.value
            if name not in called:
                continue
            above = parents.get(node)
            is_call = type(above) is cst.Call and above.func is node
            while above is not None and above not in constructors and type(above) is not cst.ClassDef:
                above = parents.get(above)
            # the `self.sequence_length` of another class is another thing
            if above in constructors or (type(above) is cst.ClassDef and not is_call and self._lacks(above, name)):
                continue
            called.discard(name)
        return called

    def _lacks(self, definition: cst.ClassDef, name: str) -> bool:
        return not any(name in cls.methods for cls in self.classes[definition].lineage)

    def _reached(self, roots: set[Function]) -> set[Function]:
        """The functions that the roots call, themselves included, directly or through others."""
        seen = set(roots)
        todo = list(roots)
        while todo:
            function = todo.pop()
            found = [self.function_names.get(name) for name in function.calls]
            if function.cls is not None:
                found += [function.cls.find_method(name) for name in function.self_calls]
            for other in found:
                if other is not None and other not in seen:
                    seen.add(other)
                    todo.append(other)
        return seen

    def _handed_as(self, keyword: str) -> set[str]:
        """Names of the functions given as an argument of that name anywhere in the file."""
        names = set()
        for arg in self.source.nodes_of(cst.Arg):
            if arg.keyword is not None and arg.keyword.value == keyword:
                path = dotted(arg.value)
                if path:
                    names.add(path.rpartition(".")[2])
        return names

    @cached_property
    def hooks(self) -> set[str]:
        """Names of the functions that are handed the gradient of a tensor, on its device: ``p.register_hook(clip)``."""
        return {
            dotted(call.args[0].value).rpartition(".")[2]
            for call in self.source.nodes_of(cst.Call)
            if type(call.func) is cst.Attribute and call.func.attr.value == "register_hook" and call.args
        } - {""}


_CUSTOMARY = {"torch": "torch", "nn": "torch.nn", "F": "torch.nn.functional", "np": "numpy", "optim": "torch.optim"}
_WRAPPERS = re.compile(r"DataParallel|\bDDP\b|FSDP|[Aa]ccelerator\b|dispatch_model|deepspeed|device_map")
# parts of these, which are quicker to look for
_IN_WRAPPERS = ("DataParallel", "DDP", "FSDP", "ccelerator", "dispatch_model", "deepspeed", "device_map")
_MODULE_BASE = re.compile(
    r"^(Module|nn\.Module|LightningModule|PreTrainedModel|ModelMixin|PreTrainedModelMixin|Metric|BaseModel|"
    r"\w*PreTrainedModel|\w+Layer|\w+Module)$"
)
#: Packages whose `Metric`, `BaseModel` and the like are no modules of torch.
_NO_MODULES = ("ignite.", "pydantic.", "keras.", "tensorflow.", "paddle.", "flax.", "mxnet.", "mindspore.")


def _tensor_fields(node: cst.ClassDef) -> Iterator[str]:
    """The names that a class body says are tensors: ``class Rays: origins: Tensor; colors: Tensor | None = None``."""
    for field in annotated(node):
        types = {*annotation_names(field.annotation.annotation)} - {"None"}
        if type(field.target) is cst.Name and len(types) == 1 and is_tensor_annotation(field.annotation):
            yield field.target.value


def _is_dataset(bases: AbstractSet[str]) -> bool:
    return bool(bases & table.DATASETS) or any(name.rpartition(".")[2].endswith("Dataset") for name in bases)


def is_module(bases: AbstractSet[str]) -> bool:
    """Whether a class with bases of these names is a module."""
    return any(
        name in table.MODULE_BASES
        or name in packages.MODULE_BASES
        or name.startswith("torch.nn.")
        or (_MODULE_BASE.search(name.rpartition(".")[2]) and not name.startswith(_NO_MODULES))
        for name in bases
    )


def _is_of_host(cls: Class | None) -> bool:
    """Data sets and the like, whose methods run before anything is moved."""
    if cls is None:
        return False
    if any(c.is_dataset for c in cls.lineage):
        return True
    # class AugmentedBound(Bound): def forward(self, x): ...   of a base that is not seen
    computes = any(c.methods.keys() & _COMPUTES for c in cls.lineage)
    return _HOST_CLASS.search(cls.name) is not None and not cls.is_module and not computes


def _makes_layers(cls: Class) -> bool:
    init = cls.find_method("__init__")
    return init is not None and any(name.startswith(("torch.nn.", "nn.")) for name in init.calls)


def _registered_by(base: str) -> frozenset[str]:
    """``running_mean`` of ``class Norm(nn.BatchNorm2d)``: assigned to, it stays the buffer that it is."""
    package, _, name = base.rpartition(".")
    is_torchs = package == "torch.nn" or package.startswith("torch.nn.modules.")
    return table.REGISTERED.get(name, frozenset()) if is_torchs else frozenset()


def _registers(cls: Class) -> bool:
    """``self.register_buffer("mask", mask)``, of a base that is not seen: no other class has that."""
    names = {"register_buffer", "register_parameter"}
    return any(names & method.self_calls for method in cls.methods.values()) and not any(map(cls.find_method, names))


def _outside_stores(target: cst.BaseExpression, into: set[str]) -> None:
    if type(target) is cst.Attribute:
        if not (type(target.value) is cst.Name and target.value.value == "self"):
            into.add(target.attr.value)
    elif type(target) is cst.Tuple or type(target) is cst.List:
        for item in target.elements:
            _outside_stores(item.value, into)
