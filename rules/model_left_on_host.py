from __future__ import annotations

import re
from collections import defaultdict
from functools import cached_property

import libcst as cst

from devlint import tree
from devlint.finding import Fix
from devlint.flow.hypothesis import LOSS_NAME, MODEL_NAME, OPTIMIZER_NAME, names_device
from devlint.flow.modules import has_tensors
from devlint.flow.names import called_name, dotted, last_word
from devlint.flow.place import HOST
from devlint.flow.scope import Class, Function
from devlint.flow.steps import function_called
from devlint.flow.value import MODULE, UNKNOWN_KIND, Value
from devlint.rule import Rule
from devlint.rules._brought import Brought, pairs
from devlint.rules._meetings import calls_of
from devlint.rules._moves import short
from devlint.rules._places import bound_before, device_expression, is_set_before
from devlint.rules._uses import Use, Uses, members

#: Where a name is bound: a function, the top level, or the class whose attribute it is.
_Holder = tuple[str, Function | Class | None]


class ModelLeftOnHost(Rule):
    """A model is built in one place and called in another with what was moved to a device, and nothing moves it.

    ## What it does
    Reports the call that builds a module (a model, a layer, a metric with states) where the file does not move it
    anywhere: not where it is built, in none of its functions, classes and methods that hold it or are handed it. One of
    them calls it with what was moved to a device (`net(images.to(device))`).

    Reports also the call of a model that a function is handed beside a `device`, where it moves the batches only, and
    other functions of the file move the model that they are handed so; and a function that is handed a `device`, reads
    weights to it (`map_location=device`), and gives back the model that it has loaded them into, on the host.

    ## Why is this bad
    A module is built on the host. Its parameters stay there until `.to(device)`, and `load_state_dict` copies into them
    where they are. The first call with something on a device raises `Expected all tensors to be on the same device`.

    ## Example
    ```python
    import torch
    from torch import nn


    class Trainer:
        def __init__(self, net, device):
            self.net, self.device = net, torch.device(device)

        def step(self, images, labels):
            images, labels = images.to(self.device), labels.to(self.device)
            nn.functional.cross_entropy(self.net(images), labels).backward()


    def main(loader, device):
        net = nn.Linear(8, 2)
        trainer = Trainer(net, device)
        for images, labels in loader:
            trainer.step(images, labels)
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn


    class Trainer:
        def __init__(self, net, device):
            self.net, self.device = net, torch.device(device)

        def step(self, images, labels):
            images, labels = images.to(self.device), labels.to(self.device)
            nn.functional.cross_entropy(self.net(images), labels).backward()


    def main(loader, device):
        net = nn.Linear(8, 2).to(device)
        trainer = Trainer(net, device)
        for images, labels in loader:
            trainer.step(images, labels)
    ```

    ## Fix safety
    The fix moves the model where it is built. It is unsafe: the file may be meant for the host.

    ## Limits
    Silent where anything may move the model: a function or method that is not seen, a wrapper (`DataParallel`,
    accelerate, Lightning), a list that it is put into; where its maker is told a device, or names one in its own code;
    for attributes of modules, which move with the whole, and of classes with bases that are not seen, unless the
    constructor moves another one of its models. Where one function does all of it, `mixed-devices` speaks. Tentative
    where a name alone says that it is a module, where the maker is not looked into (`build_model(args)` may do as
    `args.device` says), where a function of another file is handed both, and for models that a function is handed or
    gives back. New: nine faults that projects have mended since; in 141 other repositories it found one, which is true,
    after the causes of seven that were false had been mended.

    ## References
    - [torch.nn.Module.to](https://pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.to)
    - [torch.nn.Module.load_state_dict](https://pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.load_state_dict)
    """

    group = "nursery"
    fixable = "sometimes"
    assumes_host_default = True
    raises = True

    def check(self) -> None:
        text = self.source.text
        if not _PUTS.search(text) or self.flow.default_place != HOST or self.flow.scope.wraps_models:
            return
        brought = Brought(self)
        for holder, bound in self._holders.items():
            makers = [self._maker(each, holder) for each in bound]
            if None in makers:
                continue
            known = [maker for maker in makers if maker is not None]
            if not any(brought.operand(maker) for maker in known):  # Decoder(weights.cuda())
                self._judge(holder, known, brought)
        for part in self.source.nodes_of(cst.AssignTarget):
            if isinstance(part.target, cst.Attribute) and isinstance(part.target.value, cst.Name):
                self._judge_part(part.target, part.target.value, brought)
        self._judge_siblings(brought)
        if "map_location" in text:
            for function in self.flow.scope.functions.values():
                self._judge_loader(function, brought)

    # what holds models --------------------------------------------------------------------------

    @cached_property
    def _holders(self) -> dict[_Holder, list[cst.BaseExpression]]:
        """The names and attributes that are bound to what calls give, and to nothing else."""
        found: defaultdict[_Holder, list[cst.BaseExpression]] = defaultdict(list)
        bound = [(target.target, node.value) for node in self.source.nodes_of(cst.Assign) for target in node.targets]
        bound += [(n.target, n.value) for n in self.source.nodes_of(cst.AnnAssign) if n.value is not None]
        for target, value in bound:
            for each, part in pairs(target, value):
                holder = self._holder(each)
                if holder is not None:
                    # net, tokens = load(path)   gives two things
                    found[holder].append(part if each is target or part is not value else each)
        return {holder: bound for holder, bound in found.items() if all(_innermost(each) for each in bound)}

    def _holder(self, target: cst.BaseExpression) -> _Holder | None:
        function = self.flow.function(target)
        if isinstance(target, cst.Name):
            while function is not None and target.value in function.globals:
                function = function.outer
            return target.value, function
        if isinstance(target, cst.Attribute) and dotted(target.value) == "self" and function is not None:
            return (target.attr.value, function.cls) if function.cls is not None else None
        return None

    def _mentions(self, holder: _Holder, brought: Brought) -> list[cst.BaseExpression]:
        name, owner = holder
        if isinstance(owner, Class):
            return members(self, name, owner)
        found = []
        for node in brought.mentions(name, owner.node if owner is not None else self.source.module):
            function = self.flow.function(node)
            while function is not owner and function is not None:
                if name in function.param_names or (name in function.assigned and name not in function.globals):
                    break  # another one of that name
                function = function.outer
            if function is owner:
                found.append(node)
        return found

    # what makes models --------------------------------------------------------------------------

    def _maker(self, bound: cst.BaseExpression, holder: _Holder) -> cst.Call | None:
        """The call that builds what is held, where that is on the host as far as anybody can tell."""
        name, owner = holder
        call = _innermost(bound)
        if call is None or (LOSS_NAME.search(name) and not (self._is_known(call) or _HOLDS.search(called_name(call)))):
            return None  # criterion = CombinedLoss()
        if isinstance(owner, Function) and name in owner.param_names:
            return None  # def train(net=None): net = net or Net()
        if isinstance(owner, Class) and (owner.is_module or not (owner.known_whole or self._moves_a_sibling(call))):
            return None
        if self._is_made_on_device(call) or self._is_given_parts(call):
            return None
        if self._is_known(call):
            return call
        value = self.flow.value(call)
        if value.kind not in (UNKNOWN_KIND, "instance") or OPTIMIZER_NAME.search(name):
            return None
        return call if self._may_make_module(call, name) else None

    def _is_known(self, call: cst.Call) -> bool:
        """Whether a call surely builds a module with parameters, on the host."""
        value = self.flow.value(call)
        if value.kind != MODULE or not value.place.is_host or not has_tensors(value):
            return False
        lineage = value.ref.lineage if isinstance(value.ref, Class) else []
        return not any(_places_itself(cls.node) for cls in lineage if cls.home is self.flow)

    def _is_made_on_device(self, call: cst.Call) -> bool:
        value: Value = self.flow.value(call)
        if value.kind == MODULE and not value.place.is_host:
            return True
        around = self.enclosing(call, cst.With)
        while around is not None:
            if any("device" in tree.words(item.item) for item in around.items):
                return True  # with torch.device("cuda"): net = build_net()
            around = self.enclosing(around, cst.With)
        return False

    def _is_given_parts(self, call: cst.Call) -> bool:
        """``cell = nn.GRUCell(8, 8); cell.weight_hh.data = gru.weight_hh_l0.data``, in what is called: it is there."""
        called = function_called(self.flow, self.flow.function(call), call)
        return called is not None and any(
            isinstance(node, cst.AssignTarget) and dotted(node.target).endswith(".data")
            for node in tree.walk(called.node.body)
        )

    def _may_make_module(self, call: cst.Call, name: str) -> bool:
        """Whether a call of what is not looked into seems to build a module, and is told nothing about devices."""
        path = dotted(call.func)
        word = last_word(path)
        head = path.partition(".")[0]
        if self.flow.value(call).kind == MODULE or _NO_MODEL.search(name):
            return False
        if any(_TELLS_DEVICE.search(arg.star + tree.words(arg)) for arg in call.args):
            return False
        if any(self._is_model(arg.value) or _OF_WEIGHTS.search(tree.words(arg.value)) for arg in call.args):
            return False  # camera = GradCAM(model), decoder = Decoder(weights)   are where these are
        if not path:  # models.__dict__[args.arch](pretrained=True)
            return _is_of_zoo(call.func)
        origin = self.flow.scope.imports.get(head, "")
        qualified = origin + path[len(head) :]
        if origin.partition(".")[0] in ("torch", "numpy", "os"):
            return qualified == "torch.hub.load"
        function = self.flow.scope.function_names.get(path)
        if function is not None:
            return not function.moves_something and not function.is_told_device and bool(_OF_MODELS.search(name))
        if _RUNS_ELSEWHERE.search(word) or not (_is_class(word) or _MAKES.match(word) or self._is_starred(head)):
            return False
        definition = self.flow.definition(qualified) if origin else None
        if definition is not None and self.flow.project is not None:
            return not self.flow.project.speaks_of_devices(definition)
        # whisper.load_model("tiny") puts it on a device
        return head != "self" and (not word.startswith("load") or origin.startswith("."))

    def _is_model(self, node: cst.BaseExpression) -> bool:
        name = dotted(node)
        if _SETTINGS.match(name):
            return False  # build_detector(cfg.model)
        return self.flow.value(node).kind == MODULE or bool(MODEL_NAME.match(last_word(name)))

    def _is_starred(self, head: str) -> bool:
        """``from models.vgg import vgg16``, or by a star: the model's own name."""
        origin = self.flow.scope.imports.get(head, "")
        return bool(re.search(r"(^|\.)(models?|nets?|networks?|modeling)(\.|$)", origin))

    def _moves_a_sibling(self, call: cst.Call) -> bool:
        """``self.body = build_body(...).to(device)`` beside ``self.camera = build_camera(...)``."""
        function, word = self.flow.function(call), called_name(call)
        verb = re.match(r"(build|make|create|get|load|init)_", word)
        return verb is not None and any(
            move.target.is_there
            and isinstance(move.receiver, cst.Call)
            and self.flow.function(move.node) is function
            and called_name(move.receiver).startswith(verb[0])
            and isinstance(self.parent(move.node), cst.Assign)
            for move in self.flow.facts.moves.values()
        )

    # what is said -------------------------------------------------------------------------------

    def _judge(self, holder: _Holder, makers: list[cst.Call], brought: Brought) -> None:
        name, owner = holder
        if any(meeting.host.origin in makers for meeting in self.flow.facts.meetings.values()):
            return  # mixed-devices, loss-not-moved
        uses = Uses(self, brought)
        if not uses.gather(self._mentions(holder, brought)) or not uses.found:
            return
        known = all(self._is_known(maker) for maker in makers)
        seems = uses.is_module or _OF_MODELS.search(name) or _HOLDS.search(called_name(makers[0]))
        if not (known or seems or self._moves_a_sibling(makers[0])):
            return
        use = next((use for use in uses.found if use.sure), uses.found[0])
        shown = f"self.{name}" if isinstance(owner, Class) else name
        self.report(
            makers[0],
            f"`{shown}` is built on the host and never moved, and is used with `{short(self.code(use.operand))}`, "
            "which is on a device",
            notes=[self.note(use.call, "it is used here")],
            fix=self._fix(makers, use),
            tentative=not (known and use.sure),
        )

    def _fix(self, makers: list[cst.Call], use: Use) -> Fix | None:
        device = self._device_at(makers[0], use)
        if device is None or len(makers) > 1:
            return None
        return self.fix(f"move it: `.to({device})`", self.insert_after(makers[0], f".to({device})"), safe=False)

    def _device_at(self, maker: cst.Call, use: Use) -> str | None:
        """What names the device where the model is built."""
        function = self.flow.function(maker)
        told = _device_param(function) if function is not None else None
        if told is not None:
            return told
        there = self.flow.value(use.operand)
        device = device_expression(self.flow, maker, use.operand, there)
        if device is None and bound_before(self.flow, there.place.name, maker):
            return there.place.name  # DEVICE
        if device is None or not device.startswith("self."):
            return device
        cls = function.cls if function is not None else None
        # it may be that of another object
        return device if cls and cls.scope == there.place.scope and is_set_before(self, device, maker) else None

    # parts that come late -----------------------------------------------------------------------

    def _judge_part(self, part: cst.Attribute, whole: cst.Name, brought: Brought) -> None:
        """``net.to(device); net.head = nn.Linear(8, 2); train(net)``"""
        function = self.flow.function(part)
        moved = self._move_of(whole.value, function)
        assign = self.enclosing(part, cst.Assign)
        call = _innermost(assign.value) if assign is not None else None
        if moved is None or call is None or not self.source.comes_before(moved, part):
            return
        if not self._is_known(call) or self._is_made_on_device(call):
            return
        if any(meeting.host.origin is call for meeting in self.flow.facts.meetings.values()):
            return  # mixed-devices
        mentions = brought.mentions(whole.value, function.node if function is not None else self.source.module)
        uses = Uses(self, brought)
        late = [n for n in mentions if n is not whole and self.source.comes_before(part, n)]
        if uses.gather(late) and uses.found:
            self.report(
                call,
                f"this becomes a part of `{whole.value}`, which was moved before, and stays on the host",
                notes=[
                    self.note(moved, f"`{whole.value}` is moved here"),
                    self.note(uses.found[0].call, "it is used here"),
                ],
                tentative=not uses.found[0].sure,
            )

    # models that are handed in ------------------------------------------------------------------

    def _judge_siblings(self, brought: Brought) -> None:
        """``def score(net, loader, device): net.to(device); ...`` beside a function that moves the batches only."""
        handed = defaultdict(list)
        for function in self.flow.scope.functions.values():
            device = _device_param(function)
            for name in function.param_names & function.called if device is not None else ():
                handed[name].append((function, str(device)))
        for name, functions in handed.items():
            moves = {function: self._move_of(name, function) for function, _ in functions}
            # train(net) moves it for test(net), too
            moved = [move for function, move in moves.items() if move and not _TRAINS.search(function.name)]
            left = [each for each in functions if moves[each[0]] is None]
            if moved and len(left) == 1:
                self._judge_handed(name, *left[0], moved[0], brought)

    def _judge_handed(self, name: str, function: Function, device: str, moved: cst.CSTNode, brought: Brought) -> None:
        if calls_of(self, function) or function.is_replaced or LOSS_NAME.search(name):
            return  # whoever calls it may have moved it
        uses = Uses(self, brought)
        if not uses.gather(brought.mentions(name, function.node.body)):
            return
        fed = [use for use in uses.found if use.sure]
        if fed:
            self.report(
                fed[0].call,
                f"`{name}` is called with `{short(self.code(fed[0].operand))}`, which is on a device, and not moved",
                notes=[self.note(moved, "another function that is handed one moves it")],
                fix=self._fix_handed(name, function, device),
                tentative=True,
            )

    def _fix_handed(self, name: str, function: Function, device: str) -> Fix | None:
        first = next((line for line in function.node.body.body if not _is_docstring(line)), None)
        edit = self.insert_statement(first, f"{name}.to({device})") if first is not None else None
        return self.fix(f"move it first: `{name}.to({device})`", edit, safe=False) if edit is not None else None

    def _move_of(self, name: str, function: Function | None) -> cst.CSTNode | None:
        """The first move of what bears a name, in a function."""
        return next(
            (
                move.node
                for move in self.flow.facts.moves.values()
                if move.target.is_there and dotted(move.receiver) == name and self.flow.function(move.node) is function
            ),
            None,
        )

    # models that are given back -----------------------------------------------------------------

    def _judge_loader(self, function: Function, brought: Brought) -> None:
        """``def load(path, device): net = Net(); net.load_state_dict(torch.load(path, map_location=device))``"""
        device = _device_param(function)
        if device is None or function.is_replaced:
            return
        read = brought.mentions(device, function.node.body)
        if not read or not all(self._is_for_map_location(node) for node in read):
            return
        for node in tree.walk(function.node.body):
            if not isinstance(node, cst.Return) or not isinstance(node.value, cst.Name):
                continue
            holder = (node.value.value, function)
            bound = self._holders.get(holder, [])
            uses = Uses(self, brought)
            if (
                bound
                and all(self._maker(each, holder) for each in bound)
                and uses.gather(self._mentions(holder, brought))
                and uses.is_module
                and not self._is_moved_by_callers(function, brought)
            ):
                self.report(
                    node,
                    f"`{node.value.value}` is on the host: `{device}` only says where its weights are read to",
                    notes=[self.note(read[0], "they are read here, and copied into it where it is")],
                    fix=self.fix(
                        f"move it: `.to({device})`", self.insert_after(node.value, f".to({device})"), safe=False
                    ),
                    tentative=True,
                )
                return

    def _is_for_map_location(self, node: cst.CSTNode) -> bool:
        arg = self.parent(node)
        return isinstance(arg, cst.Arg) and arg.keyword is not None and arg.keyword.value == "map_location"

    def _is_moved_by_callers(self, function: Function, brought: Brought) -> bool:
        """``net = load(path, device).to(device)``, ``net = load(path, device); net.cuda()``"""
        for call in self.source.nodes_of(cst.Call):
            if called_name(call) != function.name:
                continue
            above = self.parent(call)
            if isinstance(above, cst.Assign):
                holder = self._holder(above.targets[0].target)
                if holder is not None and Uses(self, brought).gather(self._mentions(holder, brought)):
                    continue
            return True
        return False


_PUTS = re.compile(r"\.to\(|\.cuda\(|device\s*=|map_location")
_TRAINS = re.compile(r"train|fit|init|setup|load|prepare|learn")
#: Arguments that tell a device: ``device_map="auto"``.
_TELLS_DEVICE = re.compile(r"device|cuda|gpu|^self$|^\*\*(\w*kwargs|options|extras?)$", re.IGNORECASE)
#: The settings of a program: ``args``, ``cfg.model``.
_SETTINGS = re.compile(
    r"^(self\.)?(args|opts?|cfg|conf|configs?|hparams|hps|params|settings|flags)(\.\w+)?$", re.IGNORECASE
)
_OF_WEIGHTS = re.compile(r"weights\b|state_dict|tensors?\b")
#: Where models are picked by name.
_ZOO = re.compile(r"(^|[._])(models?|nets?|archs?|zoo|registry)(\.__dict__|_\w+|s)?$", re.IGNORECASE)
_OF_MODELS = re.compile(
    f"{MODEL_NAME.pattern}|(^|_)(model|net|layer|layers|camera|transformer|bert|gpt|lstm|rnn|cnn|gan|resnet\\d*|embedder"
    r"|extractor|estimator|head|tower|student|teacher|denoiser|predictor|regressor|detector|problem|metric)(_|\d|$)"
)
#: What is called, and handed to, and no module.
_NO_MODEL = re.compile(
    r"token|process|transform(?!er)|collat|dataset|data_?loader|loader|sampler|sched|optim|logger|writer|trainer|env"
    r"|buffer|config|args|path|file|device|client|server|pool|queue|thread|timer|meter|stats|tracker|parser|pipeline"
)
#: Losses that compare what a network of their own makes of two images.
_HOLDS = re.compile(r"lpips|perceptual|vgg", re.IGNORECASE)
#: What runs a model by other means than torch's.
_RUNS_ELSEWHERE = re.compile(r"wrap|trt|tensorrt|onnx|session|engine|runtime|backend|parallel|api", re.IGNORECASE)
#: Words of what builds a model.
_MAKES = re.compile(
    r"_?(load|build|make|get|create|init|construct|instantiate)_?\w*(model|net|encoder|decoder|\b)|from_"
)


def _device_param(function: Function) -> str | None:
    """The parameter by which a function is told a device."""
    return next((each.name.value for each in function.params if names_device(each.name.value)), None)


def _is_class(word: str) -> bool:
    return word[:1].isupper()


def _innermost(bound: cst.BaseExpression) -> cst.Call | None:
    """``Net(8)`` of ``Net(8).eval()``."""
    while isinstance(bound, cst.Call) and isinstance(bound.func, cst.Attribute) and bound.func.attr.value in _SAME:
        bound = bound.func.value
    return bound if isinstance(bound, cst.Call) else None


def _places_itself(node: cst.ClassDef) -> bool:
    """``self.to(device)``, ``self.device = device``, ``x.cuda()`` in a class."""
    return any(
        each.attr.value == "cuda" or dotted(each) in ("self.to", "self.device")
        for each in tree.walk(node)
        if isinstance(each, cst.Attribute)
    )


def _is_of_zoo(func: cst.BaseExpression) -> bool:
    """``models.__dict__[name]``, ``getattr(models, name)``"""
    if isinstance(func, cst.Subscript):
        return bool(_ZOO.search(dotted(func.value)))
    return (
        isinstance(func, cst.Call) and called_name(func) == "getattr" and bool(_ZOO.search(dotted(func.args[0].value)))
    )


def _is_docstring(line: cst.CSTNode) -> bool:
    return isinstance(line, cst.SimpleStatementLine) and (
        isinstance(line.body[0], cst.Expr) and isinstance(line.body[0].value, cst.SimpleString)
    )


_SAME = frozenset("eval train half float double bfloat16 requires_grad_".split())
