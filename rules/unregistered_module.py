from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import libcst as cst

from devlint import tree
from devlint.finding import Fix
from devlint.flow import torch_table as table
from devlint.flow.arguments import is_false
from devlint.flow.hypothesis import names_device
from devlint.flow.modules import has_tensors, is_loss_or_metric
from devlint.flow.names import called_name, dotted, last_word, names_bound, targets_in
from devlint.flow.scope import CONSTRUCTOR, Class, Function
from devlint.flow.value import DICT, LIST, MODULE, SEVERAL, TENSOR, TUPLE, Value, inside
from devlint.rule import Rule
from devlint.rules._as_arrays import asked_for_arrays
from devlint.rules._gathered import CONTAINERS, bound_to, is_gathered
from devlint.rules._meetings import calls_of
from devlint.rules._modules import after_super
from devlint.rules._overrides import overrides_attributes
from devlint.rules._pipelines import unknown_parts
from devlint.rules._recurs import function_of


class UnregisteredModule(Rule):
    """Modules or parameters in a plain list, tuple or dict are no part of the module that holds them.

    ## What it does
    Reports `self.x = [...]`, a tuple or a dict in an `nn.Module`, where modules with parameters, or parameters, are
    put into it: by a literal, a comprehension, `append` or an item. Reports modules in a named tuple, a dataclass or a
    `SimpleNamespace`, which register nothing either, and a parameter that is annotated as a list or dict of modules,
    is kept as it is, and its elements called. Reports modules that a pipeline of `diffusers` keeps and is not told of:
    it moves what it finds under the names of the parameters of its constructor that have no default.

    ## Why is this bad
    A module knows the modules and parameters that are its attributes, and those in `nn.ModuleList`, `nn.ModuleDict`
    and their kin. It does not look into Python's containers: `module.to(device)` leaves what is in them on the host,
    and the first input that was moved raises. `parameters()` does not have them either, so no optimizer trains them;
    `state_dict()` does not save them, and `eval()` does not reach them.

    ## Example
    ```python
    from torch import nn


    class Net(nn.Module):
        def __init__(self, width, depth):
            super().__init__()
            self.layers = [nn.Linear(width, width) for _ in range(depth)]

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x
    ```

    ## Use instead
    ```python
    from torch import nn


    class Net(nn.Module):
        def __init__(self, width, depth):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x
    ```

    ## Fix safety
    The fix wraps the container in `nn.ModuleList`, `nn.ModuleDict`, `nn.ParameterList` or `nn.ParameterDict`. It is
    unsafe: new keys appear in `state_dict()`, so that older checkpoints lack them, and the optimizer gets more to
    train. No fix is offered for a container of other things as well, for keys that may be no strings, and before
    `super().__init__()` has run.

    ## Limits
    Silent where somebody takes care of what is in the container:

    - the class registers modules by name (`add_module`, `setattr`), or has a helper do so, registers them by way of a
      second list or under names of their own, moves what is in it by itself, or overrides `parameters`, `children`,
      `to` or `_apply`;
    - the container, or an element of it, is handed on to something that may register it; what an element computes is
      not (`answers.append(self.heads[0](x))`);
    - it is a list of one that no loop goes through (`self._teacher = [teacher]`), which is how a module is hidden on
      purpose, or the constructor is given the modules one by one;
    - the modules have no parameters and buffers, or are parameters of other parts (`self.norm.weight.to(dtype)`).

    Tentative where it may be meant, or does no harm:

    - no method but the constructor, and what that alone calls, names the container, no method calls one of the modules
      by way of it, or only with what is on the host (`self.heads[0](x.cpu())`), or in methods that read arrays off the
      result (`self.bodies[0](x).numpy()`);
    - dictionaries, of which others move what is asked for as often as not; losses and metrics, which are perhaps fed on
      the host; parameters;
    - modules that are given a device, put their parts on one when they are built, have buffers alone, or are moved when
      they are built (`[Net(width).to(DEVICE) for _ in range(n)]`), so that only `state_dict()`, `eval()` and perhaps an
      optimizer miss them; modules of which the constructor moves some, by a test;
    - annotated parameters of the constructor, which whoever hands them in may register; parts of pipelines; and what is
      not seen to be a named tuple, but holds tensors elsewhere in the file.

    It was in the nursery twice: of 65 findings in all samples until then, strict readers held 35 for true, 14 for
    arguable and 16 for wrong; what these showed is silent or tentative since. In 392 repositories, large and well kept,
    and some 17,000 packages of PyPI after that it told 16: 12 were true, three arguable (reservoirs, layers whose
    weights are not used, layers that are fed on the host) and one wrong, for its fix, which is not offered any more. It
    is on by default, since a plain list of layers is what people ask about most (`benchmarks/questions`).

    ## References
    - [torch.nn.ModuleList](https://pytorch.org/docs/stable/generated/torch.nn.ModuleList.html)
    - [torch.nn.ParameterList](https://pytorch.org/docs/stable/generated/torch.nn.ParameterList.html)
    """

    group = "correctness"
    fixable = "sometimes"
    raises = True

    def check(self) -> None:
        reported: set[cst.CSTNode] = set()
        handed_in = "Module]" in self.source.text
        for cls in self.flow.scope.classes.values():
            if cls.is_module and _is_torchs(cls):
                for name in cls.stores:
                    self._attribute(cls, name, reported)
                    self._record(cls, name, reported)
                    if handed_in:
                        self._handed_in(cls, name, reported)

        for cls, name, statement in unknown_parts(self):
            self.report(
                statement,
                f"`{cls.name}` does not know of its part `{name}`, which stays where it is when the pipeline is moved",
                tentative=True,  # def __init__(self, unet, encoder=None): the one it is handed may be there already
            )

    def _attribute(self, cls: Class, name: str, reported: set[cst.CSTNode]) -> None:
        stores = self.flow.stores(cls, name)
        held = [(statement, value) for statement, value in stores if _held(value)]
        made = [s for s, v in stores if isinstance(s, cst.Assign | cst.AnnAssign) and v.kind in _PLAIN]
        if not held or not made or made[0] in reported:
            return
        if any(value.kind == MODULE for _, value in stores):
            return  # self.layers = nn.ModuleList(self.layers)
        put = [each for statement, _ in held for each in self._put(statement) if not self._is_elsewhere(each[0])]
        if not put or self._is_hidden(cls, name, stores) or self._takes_care(cls, name):
            return
        moved = self._is_moved_by_choice(cls, name)
        reported.add(made[0])
        node, value = put[0]
        parameters = value.kind == TENSOR
        what = "parameters" if parameters else "modules"
        container = next(value.kind for statement, value in stores if statement is made[0])
        stay = "" if value.place.is_there else ", and stay where they are when it is moved"
        notes = [self.note(node, f"this is one of the {what}")] if self._is_below(node, made[0]) else []
        self.report(
            made[0],
            f"`self.{name}` is a plain {_PLAIN[container]}: the {what} in it are no part of `{cls.name}`{stay}",
            notes=notes,
            fix=self._fix(made[0], container, stores, parameters),
            # self.starts = [nn.Parameter(...) for _ in range(n)]   may be moved where they are read
            tentative=moved
            or parameters
            # {"male": Body(...), "female": Body(...)}   is a choice, and others move what is asked for
            or container == DICT
            # [Net(width).to(DEVICE) for _ in range(n)]   who moves them may gather their parameters, too
            or all(isinstance(each, cst.Call) and called_name(each) in table.MOVES for each, _ in put)
            # self.layers[0].weight   may look at what is registered elsewhere
            or not self._are_called(cls, name)
            # {"accuracy": Accuracy()}   has no parameters, and is perhaps fed on the host
            or all(isinstance(each.ref, str) and is_loss_or_metric(each.ref) for _, each in put)
            or all(_needs_no_move(*each) or _is_constant(*each) for each in put)
            or (all(each.place.is_there for _, each in put) and self._are_trained_apart(name)),
        )

    def _record(self, cls: Class, name: str, reported: set[cst.CSTNode]) -> None:
        """``self.heads = Heads(mask=nn.Linear(8, 1), box=nn.Linear(8, 4))`` of a named tuple, or a dataclass."""
        stores = self.flow.stores(cls, name)
        statement = stores[0][0] if len(stores) == 1 else None
        call = statement.value if isinstance(statement, cst.Assign) else None
        if not isinstance(call, cst.Call) or statement in reported or statement is None:
            return
        put = [
            arg.value
            for arg in call.args
            if not arg.star and any(value.obj is not SEVERAL for value in _held(self.flow.value(arg.value)))
        ]
        put = [each for each in put if not self._is_elsewhere_than(each, call)]
        if not put:
            return
        is_sure = self._is_record(call)
        if not is_sure and not self._holds_tensors_too(call):
            return
        if self._takes_care(cls, name) or not self._is_used(cls, name):
            return
        reported.add(statement)
        self.report(
            statement,
            f"`self.{name}` is a plain `{dotted(call.func)}`: the modules in it are no part of `{cls.name}`, and stay "
            "where they are when it is moved",
            notes=[self.note(put[0], "this is one of the modules")],
            tentative=not is_sure,
        )

    def _is_elsewhere_than(self, node: cst.CSTNode, call: cst.Call) -> bool:
        """Whether a module that a record is given is registered on its own: ``head`` of ``Heads(mask=head)``."""
        function = self.enclosing(node, cst.FunctionDef)
        if not isinstance(node, cst.Name) or function is None:
            return self._is_elsewhere(node)
        for other in tree.walk(function.body):
            if isinstance(other, cst.Name) and other.value == node.value and other is not node:
                above = self.parent(other)
                if isinstance(above, cst.Arg) and self.parent(above) is not call:
                    return True
                if isinstance(above, cst.Assign) or self._is_inside_registering(other):
                    return True  # self.head = head
        return False

    def _is_record(self, call: cst.Call) -> bool:
        """Whether a class has fields, and is no module: ``namedtuple``, ``NamedTuple``, ``@dataclass``."""
        path = dotted(call.func)
        if self.flow.scope.qualified(call.func) == "types.SimpleNamespace":
            return True
        cls = self.flow.scope.class_names.get(path)
        unit = self.flow.followed(self.flow.scope.qualified(call.func)) if cls is None else None
        cls = cls if cls is not None or unit is None else unit.cls
        if cls is not None:
            bases = {last_word(base) for owner in cls.lineage for base in owner.bases}
            decorators = {last_word(self._decorates(each)) for each in cls.node.decorators}
            return not cls.is_module and ("NamedTuple" in bases or "dataclass" in decorators)
        # Heads = namedtuple("Heads", ["mask", "box"])
        return any(
            dotted(assign.targets[0].target) == path
            and isinstance(assign.value, cst.Call)
            and called_name(assign.value) in ("namedtuple", "NamedTuple")
            for assign in self.source.nodes_of(cst.Assign)
        )

    def _decorates(self, node: cst.Decorator) -> str:
        return dotted(node.decorator.func if isinstance(node.decorator, cst.Call) else node.decorator)

    def _holds_tensors_too(self, call: cst.Call) -> bool:
        """``Heads(mask=..., box=...)`` of tensors elsewhere in the file: what holds these is no module."""
        fields = _fields(call)
        return bool(fields) and any(
            each is not call
            and dotted(each.func) == dotted(call.func)
            and _fields(each) == fields
            and any(self.flow.value(arg.value).is_tensor for arg in each.args)
            for each in self.source.nodes_of(cst.Call)
        )

    def _handed_in(self, cls: Class, name: str, reported: set[cst.CSTNode]) -> None:
        """``def __init__(self, heads: list[nn.Module]): self.heads = heads``, whose elements are then called."""
        stores = self.flow.stores(cls, name)
        statement = stores[0][0] if len(stores) == 1 else None
        function = self.flow.function(statement) if statement is not None else None
        if not isinstance(statement, cst.Assign) or function is None or function.role != CONSTRUCTOR:
            return
        param = function.param(_of_parameter(statement.value))
        container = _holding_modules(param.annotation) if param is not None and param.annotation is not None else ""
        if param is None or not container or param.name.value in function.assigned or statement in reported:
            return
        if self._takes_care(cls, name) or not self._are_called(cls, name) or self._is_handed_registered(cls):
            return
        # super().__init__(heads); nn.Sequential(*heads)
        if self._is_handed_on(function.node, param.name.value, statement):
            return
        reported.add(statement)
        self.report(
            statement,
            f"`self.{name}` is a plain {container}: the modules in it are no part of `{cls.name}`, and stay where they "
            "are when it is moved",
            notes=[self.note(param, "it is annotated so here")],
            tentative=True,  # who hands them in may move and train them
        )

    def _is_handed_on(self, init: cst.FunctionDef, name: str, statement: cst.Assign) -> bool:
        for node in tree.walk(init.body):
            if isinstance(node, cst.Name) and node.value == name and self.enclosing(node, cst.Assign) is not statement:
                call = self.enclosing(node, cst.Call)
                if call is not None and dotted(call.func) not in _LOOKS:
                    return True
        return False

    def _is_handed_registered(self, cls: Class) -> bool:
        """Whether a call of the class in the file hands in an `nn.ModuleList`, which registers what it holds."""
        return any(
            dotted(call.func) == cls.name and any(self.flow.value(arg.value).kind == MODULE for arg in call.args)
            for call in self.source.nodes_of(cst.Call)
        )

    def _are_called(self, cls: Class, name: str) -> bool:
        """``for head in self.heads: found.append(head(x))``, ``self.heads[0](x)``, outside of the constructor."""
        path = f"self.{name}"
        return any(
            isinstance(node, cst.Call)
            and not (isinstance(node.func, cst.Attribute) or dotted(node.func) in _LOOKS)
            and self._is_of(node.func, path)
            # self.heads[0](x.cpu())   which are to be on the host
            and not any(self.flow.value(arg.value).place.is_host for arg in node.args)
            and not any(asked_for_arrays(method))  # self.bodies[kind](pose).numpy()   of a module for the host
            for owner in (*cls.lineage, *cls.descendants)
            for method in owner.methods.values()
            if method.role != CONSTRUCTOR
            for node in tree.walk(method.node.body)
        )

    def _are_trained_apart(self, name: str) -> bool:
        """``self.optimizers = [Adam(head.parameters()) for head in self.heads]``"""
        path = f"self.{name}"
        return any(
            isinstance(given, cst.Call)
            and isinstance(given.func, cst.Attribute)
            and self._is_of(given.func.value, path)
            for call in self.flow.calls(*table.OPTIMIZERS)
            for given in (arg.value for arg in call.args[:1])
        )

    def _is_below(self, node: cst.CSTNode, statement: cst.CSTNode) -> bool:
        return self.source.offsets(node)[0] > self.source.offsets(statement)[1]

    # what is put in -------------------------------------------------------------------------------

    def _put(self, statement: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, Value]]:
        """The expressions that a store puts into the container, and what of each is a module or a parameter."""
        if isinstance(statement, cst.Subscript):  # self.heads[key] = nn.Linear(8, 2)
            above = self.enclosing(statement, cst.Assign)
            todo = [above.value] if above is not None else []
        elif isinstance(statement, cst.Call):  # self.layers.append(layer)
            todo = [arg.value for arg in statement.args[-1:]]
        else:
            todo = [statement.value] if isinstance(statement, cst.Assign | cst.AnnAssign) and statement.value else []
        while todo:
            node = todo.pop(0)
            if isinstance(node, cst.List | cst.Tuple | cst.Dict):
                todo += [item.value for item in node.elements]
            elif isinstance(node, cst.ListComp | cst.GeneratorExp):
                todo.append(node.elt)
            elif isinstance(node, cst.DictComp):
                todo.append(node.value)
            elif isinstance(node, cst.Call) and dotted(node.func) in ("list", "tuple", "dict") and len(node.args) == 1:
                todo.append(node.args[0].value)
            else:
                yield from ((node, value) for value in _held(self.flow.value(node)) if value.obj is not SEVERAL)

    def _is_elsewhere(self, node: cst.CSTNode) -> bool:
        """Whether what is put in is, or may be, registered on its own."""
        while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in _CASTS:
            node = node.func.value  # self.norm.weight.to(torch.bfloat16)
        if isinstance(node, cst.Attribute | cst.Subscript):
            return True  # [self.stem, self.body], self.heads[0]
        if isinstance(node, cst.Call):
            maker = function_of(self.flow, node)  # def make(self): layer = nn.Linear(3, 3); self.all.append(layer)
            returns = tree.walk(maker.node.body) if maker is not None else ()
            given = [each.value for each in returns if isinstance(each, cst.Return)]
            while given:
                each = given.pop()
                if isinstance(each, cst.List | cst.Tuple):  # self.stem = nn.Conv2d(...); return [self.stem]
                    given += [item.value for item in each.elements]
                elif isinstance(each, cst.Name | cst.Attribute | cst.Subscript) and self._is_elsewhere(each):
                    return True
            return False
        if not isinstance(node, cst.Name):
            return False
        function = self.enclosing(node, cst.FunctionDef)
        if function is not None and self._are_handed_on(node.value, function):
            return True
        for other in tree.walk(function) if function is not None else ():
            if not isinstance(other, cst.Name) or other is node or other.value != node.value:
                continue
            above = self.parent(other)
            if isinstance(above, cst.Assign) and above.value is other:
                if any(isinstance(target.target, cst.Attribute) for target in above.targets):
                    return True  # self.neck = neck
                if self._is_item_of_module(above):
                    return True  # self.parts["neck"] = neck
            elif isinstance(above, cst.Arg):
                call = self.parent(above)  # setattr(self, name, cell); nn.Sequential(*layers); layers.append(cell)
                if not isinstance(call, cst.Call) or dotted(call.func) not in _LOOKS:
                    return True
            if self._is_inside_registering(other):
                return True  # nn.ModuleList(list(layers)); nn.ModuleDict(parts.items())
        return False

    def _is_item_of_module(self, assign: cst.Assign) -> bool:
        targets = (each.target for each in assign.targets)
        return any(isinstance(each, cst.Subscript) and self.flow.value(each.value).kind == MODULE for each in targets)

    def _is_inside_registering(self, node: cst.CSTNode) -> bool:
        """Whether a node is in the arguments of one of torch's containers, which registers what it is given."""
        call = self.enclosing(node, cst.Call)
        while call is not None:
            if self.flow.name_of(call) in CONTAINERS:
                return True
            call = self.enclosing(call, cst.Call)
        return False

    def _are_handed_on(self, name: str, function: cst.FunctionDef) -> bool:
        """``for layer, size in zip(layers, sizes): parts.append(layer)``, where all go somewhere else, too."""
        for loop in tree.walk(function.body):
            if not isinstance(loop, cst.For) or name not in _names(loop.iter):
                continue
            bound = names_bound(loop.target)
            for call in tree.walk(loop.body):
                if not isinstance(call, cst.Call) or dotted(call.func) in _LOOKS:
                    continue
                if any(dotted(arg.value) in bound for arg in call.args):
                    return True
        return False

    def _is_used(self, cls: Class, name: str) -> bool:
        """Whether a method other than the constructor does something with what is in the container."""
        path = f"self.{name}"
        return any(
            isinstance(node, cst.Attribute) and dotted(node) == path
            for owner in (*cls.lineage, *cls.descendants)
            for method in owner.methods.values()
            if method.name != "__init__" and not self._is_of_constructor(method)
            for node in tree.walk(method.node.body)
        )

    def _is_of_constructor(self, method: Function) -> bool:
        """``self.trunk = self._pick(name)`` in the constructor, which alone calls `_pick`."""
        callers = [self.flow.function(call) for call in calls_of(self, method)]
        return bool(callers) and all(each is not None and each.role == CONSTRUCTOR for each in callers)

    def _is_hidden(self, cls: Class, name: str, stores: Iterable[tuple[cst.CSTNode, Value]]) -> bool:
        """``self._teacher = [teacher]``, asked for `self._teacher[0]`: hidden from the parameters on purpose."""
        if not all(_is_list_of_one(statement) or _is_none(statement) for statement, _ in stores):
            return False
        # for layer in self.layers: x = layer(x)
        return not any(
            isinstance(node, cst.For | cst.CompFor) and dotted(node.iter) == f"self.{name}"
            for owner in (*cls.lineage, *cls.descendants)
            for node in tree.walk(owner.node.body)
        )

    def _takes_care(self, cls: Class, name: str) -> bool:
        """Whether the class takes care of what is in the container: registers it, or moves it."""
        if any(cls.find_method(method) for method in _OWN):
            return True  # def parameters(self): ...
        path = f"self.{name}"
        if is_gathered(self, cls, path) or overrides_attributes(self, cls):
            return True
        for owner in (*cls.lineage, *cls.descendants):
            for node in tree.walk(owner.node.body):
                if isinstance(node, cst.Call):
                    last = called_name(node)
                    if last in _REGISTERS:
                        return True  # self.add_module(f"layer{i}", layer)
                    if last not in _LOOKS and any(self.code(arg.value) == path for arg in node.args):
                        return True  # self.net = nn.Sequential(*self.layers)
                    if self._has_it_registered(node):
                        return True  # register_all(self)
                    if self._hands_on(node, path):
                        return True  # for layer in self.layers: self.all.append(layer)
                    if self._moves_part(node, path) and not self._is_by_choice(node):
                        return True  # self.banks[name].to(x.device)
                elif isinstance(node, cst.Del) and path in map(dotted, targets_in(node.target)):
                    return True  # self.stacked = nn.Parameter(stacked(self.parts)); del self.parts
                elif isinstance(node, cst.Attribute) and node.attr.value == "_modules":
                    return True  # self._modules.update(...)
                elif isinstance(node, cst.Attribute) and dotted(node) == path and self._is_inside_registering(node):
                    return True  # self.all = nn.ModuleList(list(self.layers.values()))
        return False

    def _has_it_registered(self, call: cst.Call) -> bool:
        """``register_all(self)``, of ``def register_all(net): net.add_module("0", net.layers[0])``."""
        function = function_of(self.flow, call) if any(dotted(arg.value) == "self" for arg in call.args) else None
        return function is not None and any(
            isinstance(node, cst.Call) and called_name(node) in _REGISTERS for node in tree.walk(function.node.body)
        )

    def _moves_part(self, node: cst.Call, path: str) -> bool:
        is_move = called_name(node) in table.MOVES and isinstance(node.func, cst.Attribute)
        return is_move and isinstance(node.func, cst.Attribute) and self._is_of(node.func.value, path)

    def _is_by_choice(self, move: cst.Call) -> bool:
        """``if conf[name]["on_gpu"]: self.banks[name].to(device)`` as they are built: the others stay."""
        function, above = self.flow.function(move), self.parent(move)
        if function is None or function.role != CONSTRUCTOR:
            return False
        while above is not None and not isinstance(above, cst.For | cst.FunctionDef):
            # if torch.cuda.is_available(): bank.cuda()
            if isinstance(above, cst.If) and not _ASKS.search(self.code(above.test)):
                return isinstance(self.enclosing(above, cst.For, cst.FunctionDef), cst.For)
            above = self.parent(above)
        return False

    def _is_moved_by_choice(self, cls: Class, name: str) -> bool:
        return any(
            isinstance(node, cst.Call) and self._moves_part(node, f"self.{name}")
            for owner in (*cls.lineage, *cls.descendants)
            for node in tree.walk(owner.node.body)
        )

    def _hands_on(self, call: cst.Call, path: str) -> bool:
        """Whether a call puts elements of the container into another one."""
        func = call.func
        if not isinstance(func, cst.Attribute) or func.attr.value not in _PUTS or dotted(func.value) == path:
            return False
        return any(self._gives_part(arg.value, path) for arg in call.args)

    def _gives_part(self, node: cst.BaseExpression, path: str) -> bool:
        """Whether a container, or what is in it, goes into the value of an expression: not what a part of it computes,
        as in ``found.append(self.heads[i](x))``."""
        if isinstance(node, cst.Name):
            return self._is_of(node, path)
        return any(
            isinstance(each, cst.Attribute) and dotted(each) == path and not self._is_called(each)
            for each in tree.walk(node)
        )

    def _is_called(self, node: cst.CSTNode) -> bool:
        """``self.heads[i](x)``, ``self.heads[i].forward(x)``; not ``self.heads.values()``"""
        part, above = node, self.parent(node)
        while isinstance(above, cst.Subscript | cst.Attribute) and above.value is part:
            part, above = above, self.parent(above)
        if not isinstance(above, cst.Call) or above.func is not part:
            return False
        return not isinstance(part, cst.Attribute) or part.attr.value == "forward"

    def _is_of(self, node: cst.BaseExpression, path: str) -> bool:
        """Whether an expression is an element of the container: `self.layers[0]`, or what a loop over it binds."""
        if path in self.code(node):
            return True
        if not isinstance(node, cst.Name):
            return False
        loop = self.enclosing(node, cst.For, cst.ListComp, cst.GeneratorExp, cst.DictComp)
        while loop is not None:
            over = loop if isinstance(loop, cst.For) else loop.for_in
            if any(node.value in names and path in self.code(of) for names, of in bound_to(over.target, over.iter)):
                return True  # for layer in self.layers: layer.to(device)
            loop = self.enclosing(loop, cst.For, cst.ListComp, cst.GeneratorExp, cst.DictComp)
        return False

    # the fix --------------------------------------------------------------------------------------

    def _fix(
        self, statement: cst.CSTNode, container: str, stores: Sequence[tuple[cst.CSTNode, Value]], parameters: bool
    ) -> Fix | None:
        # self.layers.append(F.relu)   which `nn.ModuleList` refuses
        if any(isinstance(store, cst.Call | cst.Subscript) and not _held(value) for store, value in stores):
            return None
        values = [value for _, value in stores if _held(value)]
        value = getattr(statement, "value", None)
        wanted = TENSOR if parameters else MODULE
        if not isinstance(value, cst.BaseExpression) or not after_super(self, statement):
            return None
        if any(item.kind != wanted for each in values for item in _items(each)):
            return None  # [nn.Linear(2, 2), "relu", None]
        if container == DICT and not all(key.isidentifier() for each in values for key in each.items):
            return None  # {task: nn.Linear(2, 2) for task in tasks}: `nn.ModuleDict` takes strings only
        kinds = f"{'Parameter' if parameters else 'Module'}{'Dict' if container == DICT else 'List'}"
        wrapper = self._named(f"torch.nn.{kinds}")
        if wrapper is None or (isinstance(value, cst.Tuple) and not value.lpar):
            return None
        title = f"hold them in `{wrapper}`"
        if isinstance(value, cst.List | cst.Dict) and not value.elements:
            return self.fix(title, self.replace(value, f"{wrapper}()", outer=True), safe=False)
        if isinstance(value, cst.Call) and dotted(value.func) in ("list", "tuple"):
            return self.fix(title, self.replace(value.func, wrapper), safe=False)
        return self.fix(title, self.insert_before(value, f"{wrapper}("), self.insert_after(value, ")"), safe=False)

    def _named(self, qualified: str) -> str | None:
        """What the file calls a name of torch's; ``None`` where it imports none of the packages on the way."""
        package, rest = qualified, ""
        while package:
            for alias, name in self.flow.scope.imports.items():
                if name == package:
                    return alias + rest
            package, _, last = package.rpartition(".")
            rest = f".{last}{rest}"
        return None


_ASKS = re.compile(r"is_available|device_count|use_(cuda|gpu)\b")
#: ``list[nn.Module]``, ``Optional[Dict[str, torch.nn.Module]]``
_OF_MODULES = re.compile(r"\b(list|tuple|dict|sequence|mapping|iterable)\b.*?\bModule\b", re.IGNORECASE)
#: Python's containers, as the flow knows them.
_CASTS = frozenset({"bfloat16", "double", "float", "half", "to", "type"})
_PLAIN = {LIST: "list", TUPLE: "tuple", DICT: "dict"}


#: Methods by which a class moves, or counts, its parts itself.
_OWN = tuple(
    "_apply to cuda parameters named_parameters children named_children named_modules __setattr__ __getattr__".split()
)
_REGISTERS = frozenset({"add_module", "register_module", "register_parameter", "setattr", "__setattr__"})
#: What puts something into a container.
_PUTS = frozenset({"append", "extend", "insert", "update"})
#: What takes a container or a module and does not keep it.
_LOOKS = frozenset(
    "len enumerate zip reversed list tuple iter next range print isinstance issubclass sorted str type id repr map "
    "filter any all max min sum dict set append insert extend".split()
)


def _fields(call: cst.Call) -> set[str]:
    """The names by which a call tells all that it tells."""
    names = {arg.keyword.value for arg in call.args if arg.keyword is not None}
    return names if len(names) == len(call.args) > 1 else set()


def _of_parameter(node: cst.BaseExpression) -> str:
    """``heads`` of ``heads``, of ``heads or []``, and of ``heads if heads is not None else []``."""
    if isinstance(node, cst.BooleanOperation) and isinstance(node.operator, cst.Or):
        node = node.left
    elif isinstance(node, cst.IfExp):
        node = node.body if isinstance(node.body, cst.Name) and node.body.value != "None" else node.orelse
    return node.value if isinstance(node, cst.Name) else ""


def _holding_modules(annotation: cst.Annotation) -> str:
    """What kind of container an annotation tells of: ``list[nn.Module] | None``."""
    found = _OF_MODULES.search(tree.words(annotation))
    if found is None:
        return ""
    kind = found.group(1).lower()
    return {"sequence": "list", "iterable": "list", "mapping": "dict"}.get(kind, kind)


def _names(node: cst.CSTNode) -> set[str]:
    return {each.value for each in tree.walk(node) if isinstance(each, cst.Name)}


def _is_torchs(cls: Class) -> bool:
    """Whether the class is surely a module of torch: a base called `BaseModel` may be any library's."""
    outside = {base.rpartition(".")[2] for owner in cls.lineage for base in owner.bases}
    return bool(outside - {"BaseModel", "ABC", *(owner.name for owner in cls.lineage)})


def _held(value: Value) -> list[Value]:
    """The modules that have tensors, and the parameters, that a value is or holds, and that are made here."""
    if value.kind == MODULE:
        made_here = value.obj is None or isinstance(value.obj, cst.Call)
        return [value] if (made_here or value.obj is SEVERAL) and has_tensors(value) else []
    if value.kind == TENSOR:
        return [value] if value.ref == "parameter" else []
    return [held for item in _items(value) for held in _held(item)]


def _items(value: Value) -> list[Value]:
    """What a container holds, one by one as far as that is known."""
    if value.kind not in _PLAIN:
        return []
    return list(value.ref) if value.kind == LIST and value.items and isinstance(value.ref, tuple) else inside(value)


def _needs_no_move(node: cst.CSTNode, value: Value) -> bool:
    """Whether a module is made where it shall be, or has nothing to train: ``Dist(group, device=device)``."""
    made = node if isinstance(node, cst.Call) else value.obj
    if isinstance(made, cst.Call) and any(
        (arg.keyword is not None and arg.keyword.value == "device") or names_device(last_word(dotted(arg.value)))
        for arg in made.args
    ):
        return True
    if not isinstance(value.ref, Class):
        return False
    if not _trains(value.ref):
        return True  # self.register_buffer("table", table)  and nothing else
    init = value.ref.find_method("__init__")
    return init is not None and any(_moves(node) for node in tree.walk(init.node.body))


def _is_constant(node: cst.CSTNode, value: Value) -> bool:
    """``nn.Parameter(counts, requires_grad=False)``, which may be meant for the host: nothing trains it."""
    made = node if isinstance(node, cst.Call) else value.origin
    if value.kind != TENSOR or not isinstance(made, cst.Call):
        return False
    asked = next((arg for arg in made.args if arg.keyword is not None and arg.keyword.value == "requires_grad"), None)
    return asked is not None and is_false(asked.value)


def _trains(cls: Class, above: tuple[Class, ...] = ()) -> bool:
    """Whether modules of a class have parameters, or parts that may have some."""
    parts = [part for each in cls.lineage for part in each.attrs.values()]
    return any(
        part.ref not in above and _trains(part.ref, (*above, cls))
        if part.kind == MODULE and isinstance(part.ref, Class) and part.ref.attrs
        else part.ref == "parameter" or has_tensors(part)
        for part in parts
    )


def _moves(node: cst.CSTNode) -> bool:
    """``self.norm = Norm(width).cuda()``, ``self.norm = Norm(width).to(device)``"""
    if not isinstance(node, cst.Assign) or not dotted(node.targets[0].target).startswith("self."):
        return False
    call = node.value
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        return False
    to_device = call.func.attr.value == "to" and any(names_device(last_word(dotted(arg.value))) for arg in call.args)
    return call.func.attr.value == "cuda" or to_device


def _is_none(statement: cst.CSTNode) -> bool:
    value = getattr(statement, "value", None)
    return isinstance(value, cst.Name) and value.value == "None"


def _is_list_of_one(statement: cst.CSTNode) -> bool:
    value = getattr(statement, "value", None)
    return isinstance(value, cst.List | cst.Tuple) and len(value.elements) == 1
