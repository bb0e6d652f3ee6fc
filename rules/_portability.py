"""What rules about portability ask: which device was chosen here, and which tests stand above a node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import libcst as cst

from devlint import tree
from devlint.flow.hypothesis import names_device
from devlint.flow.names import dotted, imported, target_names
from devlint.flow.scope import CONSTRUCTOR, Class, Function
from devlint.flow.value import DEVICE, MODULE, NAME, UNKNOWN_KIND
from devlint.rule import Rule
from devlint.rules._loose_tests import is_loose
from devlint.rules._meetings import calls_of
from devlint.rules._places import bound_before

#: Words by which a test, a name or a decorator speaks of kinds of devices, or of what only one kind has.
_ANYWHERE = "cuda|gpu|nccl|triton|nvidia|deepspeed|fp16|float16|autocast|scaler"
_WHOLE = r"amp|cpu|hip|rocm|apex|half|bf16|rank|ddp|world_size|distributed|is_initialized\(|backend"
SPEAKS = re.compile(rf"{_ANYWHERE}|(?<![a-z])(?:{_WHOLE})(?![a-z])|device(?!s? is (?:not )?None)", re.IGNORECASE)
#: The same without precision and processes: `if args.fp16:` does not say that there is a GPU.
SPEAKS_OF_CUDA = re.compile(r"cuda|gpu|device(?!s? is (?:not )?None)|(?<![a-z])cpu(?![a-z])", re.IGNORECASE)
_AVAILABLE_ONLY = re.compile(
    r"\s*(bool\()?((torch|th)\.)?cuda\.(is_available\(\)\)?( (==|is) True)?|device_count\(\)( (>|!=) 0| >= 1)?\)?)\s*"
)
_BY_AVAILABILITY = re.compile(
    r"""(torch\.device\(\s*)?\(?['"]cuda(:0)?['"]\s+if\s+[\w.]+is_available\(\)\s+else\s+['"]cpu['"]\)?\s*\)?"""
)
_BY_FLAG = re.compile(r"""(?:torch\.device\(\s*)?\(?['"]cuda(?::0)?['"]\s+if\s+(\w+)\s+else\s+['"]cpu['"]\)?\s*\)?""")
#: `args.cuda`, `self.use_gpu`, `torch.cuda.is_available()`, `use_gpu(args)`, `not args.no_cuda`, `len(args.gpus) > 0`,
#: and their like alone. Not `args.gpu is not None`: where it is `None`, all GPUs may be meant.
_FLAG = re.compile(
    r"(\w+\.)*(use_|has_|with_|on_|is_)?(cuda|gpu)(_available)?(\.is_available\(\))?|"
    r"(\w+\.)*(use|has|with)_(cuda|gpu)\([\w.]*\)|not (\w+\.)*no_(cuda|gpu)|"
    r"(\w+\.)*gpu_?ids|len\((\w+\.)*gpu(s|_?ids)\) (> 0|!= 0|>= 1)|(\w+\.)*gpu(_?id)? (>= 0|> -1|!= -1)",
    re.IGNORECASE,
)
#: The switch of a program's settings: `Config.cuda = True`. Not `args.gpu = int(rank)`.
_SWITCH = re.compile(
    r"(?:args?|opt\w*|\w*conf\w*|\w*cfg\w*|\w*settings?|hparams)\.(?:use_(?:cuda|gpu)|cuda)", re.IGNORECASE
)
_SETS_SWITCH = re.compile(r"True|False|.*is_available\(.*|not .*", re.DOTALL)
#: Who places a model that is spread over whatever devices there are.
_SPREADS = frozenset({"auto", "balanced", "balanced_low_0", "sequential"})
_OF_VARIABLE_INDEX = re.compile(r"""[fF]["']cuda:\{""")
_MOVES = frozenset({"cuda", "to"})
_SETS_CURRENT = re.compile(r"set_device|cuda\.device\(|VISIBLE_DEVICES")
#: Packages that run on CUDA only.
_NEED_CUDA = frozenset("triton apex flash_attn transformer_engine msamp cupy numba pycuda pynvml tensorrt".split())
_NAMED_FOR_CUDA = re.compile(r"cuda|gpu|nccl|triton", re.IGNORECASE)
#: ``@click.option("--cuda/--no-cuda")``
_OPTION = re.compile(r"(\w+\.)?(option|argument|Option|Argument)\(")
_EXITS = frozenset({"exit", "skip", "skipTest", "quit", "_exit"})


@dataclass(frozen=True)
class Chosen:
    """A device that was chosen: the code that names it, the node where it is named, and whether it surely is the
    current CUDA device wherever there is one (``"cuda" if torch.cuda.is_available() else "cpu"``)."""

    code: str
    node: cst.CSTNode
    is_default: bool
    owner: str  # "parameter", "function", "class", "file" or "elsewhere"
    is_handed_in: bool = True  # not where a tensor or module made here tells it


@dataclass(frozen=True)
class Implied:
    """The device that nothing chooses by name, and that something has to be on all the same: ``why`` says so after what
    it was put on, ``node`` shows it, and ``code`` names it where it has a name."""

    why: str
    node: cst.CSTNode
    code: str | None = None


class Surroundings:
    """What stands around the nodes of one file; made once a file, and only where a rule has found its words."""

    def __init__(self, rule: Rule) -> None:
        self.rule, self.flow, self.source = rule, rule.flow, rule.source
        self._classes: dict[Class, Chosen | None] = {}
        self._functions: dict[Function, Chosen | None] = {}
        self._codes: dict[str, list[tuple[Function | None, str]]] = {}

    # tests --------------------------------------------------------------------------------------

    def guard(
        self,
        node: cst.CSTNode,
        words: re.Pattern[str] = SPEAKS,
        error: str = "RuntimeError|AssertionError",
        *,
        closely: bool = False,
    ) -> cst.CSTNode | None:
        """The nearest test, exit, handler or decorator by whose words ``node`` may not run on every kind of device.

        ``error``: what handlers have to catch. ``closely``: pass over those that speak of devices and ask for none
        (`_loose_tests`).
        """
        parents = self.source.parents
        child, above = node, parents.get(node)
        defined = False  # handlers around a definition do not see what it raises when it is called
        while above is not None:
            found: cst.CSTNode | None = None
            if isinstance(above, cst.If | cst.IfExp | cst.While):
                if child is not above.test and self.speaks(above.test, words):
                    found = above.test  # if x.is_cuda:
            elif isinstance(above, cst.BooleanOperation):
                if child is above.right and self.speaks(above.left, words):
                    found = above.left  # device.type == "npu" and torch.npu.is_available()
            elif isinstance(above, cst.ListComp | cst.GeneratorExp | cst.SetComp | cst.DictComp):
                found = next((each.test for each in above.for_in.ifs if self.speaks(each.test, words)), None)
            elif isinstance(above, cst.Try):
                if child is above.body and not defined and any(self._catches(each, error) for each in above.handlers):
                    found = above
            elif isinstance(above, cst.IndentedBlock | cst.Module):
                found = self._exit_before(above, child, closely=closely)
            elif isinstance(above, cst.FunctionDef | cst.ClassDef):
                # @require_cuda, def gpu_memory(): ...
                said = [above.name.value, *(self.rule.code(each.decorator) for each in above.decorators)]
                said = [each for each in said if not _OPTION.match(each)]
                if child is above.body and any(words.search(each) and not _HARMLESS.search(each) for each in said):
                    found = above
                defined = True
            if found is not None and not (closely and is_loose(self, found)):
                return found
            child, above = above, parents.get(above)
        return None

    def _catches(self, handler: cst.ExceptHandler, error: str) -> bool:
        if handler.type is None:
            return True
        return re.search(rf"\b((Base)?Exception|{error})\b", self.rule.code(handler.type)) is not None

    def speaks(self, test: cst.BaseExpression, words: re.Pattern[str] = SPEAKS) -> bool:
        """Whether a test is about devices, by its words or by those of what its names were assigned."""
        if words.search(self.rule.code(test)):
            return True
        for node in tree.walk(test):
            if not isinstance(node, cst.Name):
                continue
            above = self.source.parents.get(node)
            # if args.start:   is not about  start = read(args.start).cuda()
            made = self._kept if isinstance(above, cst.Attribute) and above.attr is node else self.assigned
            # stream = torch.cuda.Stream() if ... else None; if stream is not None:
            if any(words.search(code) and not _is_moved(node.value, code) for code in made(node.value)):
                return True
        return False

    def _kept(self, name: str) -> list[str]:
        """The code assigned to an attribute of a name, of whatever object."""
        values = (value for path, value in self._assignments.get(name, ()) if "." in path)
        return [_without_prose(self.rule.code(value)) for value in values]

    def _exit_before(
        self, block: cst.IndentedBlock | cst.Module, child: cst.CSTNode, *, closely: bool
    ) -> cst.CSTNode | None:
        """``assert torch.cuda.is_available()`` or ``if not x.is_cuda: return`` above in the same block."""
        for statement in block.body:
            if statement is child:
                break
            if isinstance(statement, cst.If):
                if closely and is_loose(self, statement):
                    continue
                if self.speaks(statement.test, SPEAKS_OF_CUDA) and leaves(statement.body):
                    return statement
            elif isinstance(statement, cst.SimpleStatementLine):
                for small in statement.body:
                    if isinstance(small, cst.Assert) and self.speaks(small.test, SPEAKS_OF_CUDA):
                        return small
                    if isinstance(small, cst.Assign) and any(
                        isinstance(t.target, cst.Name) and t.target.value == "pytestmark" for t in small.targets
                    ):
                        return small
        return None

    def is_for_cuda(self, node: cst.CSTNode) -> bool:
        """Whether what is around ``node`` is for CUDA on purpose, or is a test, which says itself where it runs."""
        return self.is_test or self.demands_cuda or self.is_fixed(node)

    @cached_property
    def is_test(self) -> bool:
        """Whether the file holds tests."""
        return self.rule.in_tests

    @cached_property
    def demands_cuda(self) -> bool:
        """Whether the file says that it is for CUDA: by its name, by an exit, or by what it sets up or imports."""
        return self._sets_device or self.is_set_up_for_cuda

    @cached_property
    def demands_cuda_closely(self) -> bool:
        """The same, but for what is asked of one way to run alone: ``if ddp: assert torch.cuda.is_available()``."""
        return self._sets_device or self._is_set_up(closely=True)

    @cached_property
    def is_set_up_for_cuda(self) -> bool:
        """The same, but for the current device that it sets: that may be told it, and be told the CPU."""
        return self._is_set_up()

    @cached_property
    def demands_cuda_apart_from_imports(self) -> bool:
        """The same, whatever it imports: ``import triton`` works where there is no CUDA."""
        return self._sets_device or self._is_set_up(imports=False)

    @cached_property
    def _sets_device(self) -> bool:
        """Whether the file sets the current device whatever there is, which a process does for all of its work."""
        return any(self.guard(call) is None for call in self.flow.calls("torch.cuda.set_device"))

    def _is_set_up(self, *, closely: bool = False, imports: bool = True) -> bool:
        name = self.source.path.replace("\\", "/").rpartition("/")[2]
        if _NAMED_FOR_CUDA.search(name):
            return True  # accelerators/cuda.py
        for call in self.flow.calls("torch.distributed.init_process_group"):
            backend = any(isinstance(arg.value, cst.SimpleString) and "nccl" in arg.value.value for arg in call.args)
            if backend and self.guard(call) is None:
                return True
        statements: list[cst.Import | cst.ImportFrom] = [*self.source.nodes_of(cst.Import)]
        for each in (*statements, *self.source.nodes_of(cst.ImportFrom)) if imports else ():
            packages = {name.partition(".")[0] for _, name in imported(each)}
            if packages & _NEED_CUDA and self.rule.enclosing(each, cst.Try, cst.If, cst.FunctionDef) is None:
                return True  # not where `try: import apex` makes it optional
        for call in self.flow.calls("torch.cuda.is_available"):
            test = self.rule.parent(call)
            if closely and self.rule.enclosing(call, cst.If, cst.FunctionDef, cst.Lambda).__class__ is cst.If:
                continue
            if isinstance(test, cst.Assert):
                return True
            # if not torch.cuda.is_available(): raise; not where that is for one option: if args.fp16 and not ...
            above = self.rule.parent(test) if isinstance(test, cst.UnaryOperation) else None
            if isinstance(above, cst.If) and leaves(above.body, raises=True):
                return self.rule.enclosing(above, cst.If) is None
        return False

    def assigned(self, name: str) -> list[str]:
        """The code assigned to a name, or an attribute of that name, anywhere in the file."""
        return [code for _, code in self._assigned(name)]

    def assignments(self) -> Iterator[tuple[str, cst.BaseExpression]]:
        """All names and attributes that the file assigns to, with what they are given."""
        for pairs in self._assignments.values():
            yield from pairs

    def assigned_to(self, path: str) -> list[str]:
        """The code assigned to just that, a plain name or a dotted one, anywhere in the file."""
        values = self._assignments.get(path.rpartition(".")[2], ())
        return [self.rule.code(value) for each, value in values if each == path]

    def _assigned(self, name: str) -> list[tuple[Function | None, str]]:
        if name not in self._codes:
            values = self._assignments.get(name, ())
            self._codes[name] = [(self.flow.function(each), _without_prose(self.rule.code(each))) for _, each in values]
        return self._codes[name]

    @cached_property
    def _assignments(self) -> dict[str, list[tuple[str, cst.BaseExpression]]]:
        found: dict[str, list[tuple[str, cst.BaseExpression]]] = {}
        pairs = [(each.target, node.value) for node in self.source.nodes_of(cst.Assign) for each in node.targets]
        pairs += [(node.target, node.value) for node in self.source.nodes_of(cst.AnnAssign) if node.value is not None]
        for target, value in pairs:
            path = dotted(target)
            if path:
                found.setdefault(path.rpartition(".")[2], []).append((path, value))
        return found

    # the device that was chosen -----------------------------------------------------------------

    def chosen(self, node: cst.CSTNode, *, apart_from: str = "") -> Chosen | None:
        """The device that the code around ``node`` works on, where it was chosen and not written down as one kind.

        ``apart_from``: what says nothing here, such as the device of what is moved.
        """
        function = self.function(node)
        owner: Class | None = None
        while function is not None:
            found = self._of_function(function)
            if found is not None and found.code != apart_from:
                return found
            owner = owner or (function.cls if function.takes_self else None)
            function = function.outer
        if owner is not None:
            found = self._of_class(owner)
            if found is not None:
                return found
        return self._of_file

    def function(self, node: cst.CSTNode) -> Function | None:
        """The function whose body a node is in; its decorators and defaults belong to what is around it."""
        parents = self.source.parents
        child, above = node, parents.get(node)
        while above is not None:
            if isinstance(above, cst.FunctionDef) and child is above.body:
                return self.flow.scope.functions.get(above)
            child, above = above, parents.get(above)
        return None

    def expression(self, chosen: Chosen, at: cst.CSTNode) -> str | None:
        """Code that gives the chosen device at ``at``; ``None`` where it may not be bound there."""
        if chosen.owner == "elsewhere":
            return None
        head = chosen.code.partition(".")[0]
        function = self.flow.function(at)
        if head == "self":
            inside = function is not None and function.cls is not None and function.takes_self
            return chosen.code if inside and function is not None and function.role != CONSTRUCTOR else None
        return chosen.code if bound_before(self.flow, head, at) else None

    def elsewhere(self, call: cst.Call) -> Chosen | None:
        """The device that another part of the file works on, where the call moves what this function was handed.

        A function that makes all it moves may be for CUDA as a whole.
        """
        function = self.function(call)
        if function is None or self._anywhere is None:
            return None
        if function.cls is not None and function.cls.is_module and function.takes_self:
            return self._anywhere
        params = {name for each in function.outwards for name in each.param_names}
        for loop in self.source.nodes_of(cst.For):  # for name, weight in state.items():
            if self.flow.function(loop) is function and _names(loop.iter) & params:
                target_names(loop.target, params)
        names = _names(call)
        return self._anywhere if names & (params - {"self", "cls"}) else None

    def implied(self, call: cst.Call) -> Implied | None:
        """The device that what ``call`` puts on CUDA has to be on, where no name tells it."""
        function = self.function(call)
        if function is None:
            return self._of_spread(call)
        found = self.followed(call) or self._of_number(function) or self._of_spread(call) or self._of_flag(function)
        return found or self._of_switch(call) or self._of_callers(function) or self._of_rest(call, function)

    def followed(self, call: cst.Call) -> Implied | None:
        """What ``call`` puts on CUDA has to be where something else is that others place."""
        function = self.function(call)
        if function is None:
            return None
        return self._of_operand(call, function) or self._of_module(call, function)

    def _of_operand(self, call: cst.Call, function: Function) -> Implied | None:
        """``mask = torch.ones(4).cuda(); return x + mask``: ``x`` is wherever the caller has it."""
        meeting = self.flow.facts.beside.get(call)
        name = meeting.there.place.name.partition(".")[0] if meeting is not None else ""
        if meeting is None or name not in function.param_names:
            return None
        param = function.param(name)
        if param is None or not self.flow.value(param).is_tensor:
            return None  # net(batch["x"].cuda()): a program that runs its own model may be for CUDA
        said = f"though it meets `{name}`, which is wherever the caller has it"
        return Implied(said, meeting.node, f"{name}.device")

    def _of_number(self, function: Function) -> Implied | None:
        """``net.to(f"cuda:{config.gpu}")`` at another place of the class, or of the function: that need not be the
        current one."""
        if _SETS_CURRENT.search(self.source.text):
            return None
        for text in self.source.nodes_of(cst.FormattedString):
            other = self.function(text)
            alike = other is not None and (other is function or (other.cls is function.cls and other.cls is not None))
            if alike and _OF_VARIABLE_INDEX.match(self.rule.code(text)):
                name = function.name if function.cls is None else function.cls.name
                return Implied(f"while `{name}` works on `{self.rule.code(text)}`", text)
        return None

    def _of_flag(self, function: Function) -> Implied | None:
        """``if args.cuda: net.cuda()`` at one place of a class, or of the functions of a file: it may be off."""
        test = self._flags.get(function.cls)
        if test is None or self._is_asked_above(function):
            return None
        return Implied(f"though elsewhere it is asked for `{self.rule.code(test)}` first", test)

    def _is_asked_above(self, function: Function) -> bool:
        """``if args.cuda: upload(net)``"""
        calls = calls_of(self.rule, function)
        return bool(calls) and all(self.guard(call, closely=True) is not None for call in calls)

    def _of_switch(self, call: cst.Call) -> Implied | None:
        """``Config.cuda = True``, which whoever changes that expects all of the program to follow."""
        function, switch = self.function(call), self._switch
        if switch is None or function is None or self._is_asked_above(function):
            return None
        # first, second = Benchmark(device="cuda"), Benchmark(device="cpu")
        moves = isinstance(call.func, cst.Attribute) and call.func.attr.value in _MOVES
        if not moves and not self.flow.scope.qualified(call.func).startswith("torch."):
            return None
        return Implied(f"whatever `{self.rule.code(switch)}` is", switch)

    @cached_property
    def _flags(self) -> dict[Class | None, cst.BaseExpression]:
        """By class, or for all functions outside of one, a flag under which something is moved to CUDA."""
        found: dict[Class | None, cst.BaseExpression] = {}
        for call in self.source.nodes_of(cst.Call):
            if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "cuda":
                continue
            test, function = self.guard(call), self.function(call)
            branch = self.source.parents.get(test) if test is not None else None
            if isinstance(branch, cst.If | cst.IfExp) and _FLAG.fullmatch(self.rule.code(branch.test)):
                found.setdefault(function.cls if function is not None else None, branch.test)
        return found

    @cached_property
    def _switch(self) -> cst.BaseExpression | None:
        """``Config.cuda`` of ``Config.cuda = True``."""
        for assign in self.source.nodes_of(cst.Assign):
            target = assign.targets[0].target
            if isinstance(target, cst.Attribute) and _SWITCH.fullmatch(self.rule.code(target)):
                # args.cuda = torch.device("cuda")
                return target if _SETS_SWITCH.fullmatch(self.rule.code(assign.value)) else None
        return None

    def _of_rest(self, call: cst.Call, function: Function) -> Implied | None:
        """``places = torch.tensor([box.place for box in boxes]); places.cuda()``: it is made of what was handed in, and
        another part of the file works on a device."""
        # def train(args): net = build(args); net.cuda()   makes what it moves
        handed = {name for name in function.param_names - {"self", "cls"} if not _CHOICES.search(name)}
        made: set[str] = set()
        for assign in self.source.nodes_of(cst.Assign) if self._anywhere is not None else ():
            target = assign.targets[0].target
            if self.flow.function(assign) is not function or not isinstance(target, cst.Name):
                continue
            value = self.flow.value(target)
            if value.is_tensor and value.place.is_host and _names(assign.value) & (handed | made):
                made.add(target.value)
        if self._anywhere is None or not _names(call) & made:
            return None
        return Implied(f"while this file works on `{self._anywhere.code}`", self._anywhere.node)

    def _of_callers(self, function: Function) -> Implied | None:
        """``mask = triangle(size).to(device)``, of a function that is told no device, and makes what it returns."""
        calls = calls_of(self.rule, function)
        callers = [self.function(call) for call in calls]
        told = [self._of_function(caller) if caller is not None else None for caller in callers]
        for call, chosen in zip(calls, told, strict=True):
            # if device.type == "cuda": mask = triangle(size)
            handed = chosen is not None and chosen.is_handed_in and chosen.owner == "parameter"
            if not handed or self.guard(call) is not None:
                return None
        if not calls or told[0] is None or callers[0] is None:
            return None
        return Implied(f"though `{callers[0].name}`, which calls `{function.name}`, is told `{told[0].code}`", calls[0])

    def _of_spread(self, call: cst.Call) -> Implied | None:
        """``net = Net.from_pretrained(name, device_map="auto")``, which is on whatever devices there are."""
        moved = call.func.value if isinstance(call.func, cst.Attribute) else call
        # tower = net.tower; tower.to("cuda")   may be the part that is put somewhere on purpose
        if not self._spread or self.flow.value(moved).kind == MODULE:
            return None
        function, blocks = self.function(call), set[cst.CSTNode]()
        above: cst.CSTNode | None = call
        while above is not None and not isinstance(above, cst.FunctionDef):
            blocks.add(above)
            above = self.source.parents.get(above)
        for name, where in self._spread:
            # if small: net = Net(); net.cuda()   and   else: net = Net.from_pretrained(name, device_map="auto")
            line = self.rule.enclosing(where, cst.SimpleStatementLine)
            if line is None or self.source.parents.get(line) not in blocks or (function, name) in self._put_on_cuda:
                continue
            if self.function(where) is function:
                return Implied(f"while `{self.rule.code(where)}` works on whatever devices there are", where)
        return None

    @cached_property
    def _spread(self) -> list[tuple[str, cst.Arg]]:
        """What is spread over devices, and the arguments that say so."""
        found = []
        for assign in self.source.nodes_of(cst.Assign) if "device_map" in self.source.text else ():
            for arg in tree.walk(assign.value):
                if not isinstance(arg, cst.Arg) or arg.keyword is None or arg.keyword.value != "device_map":
                    continue
                if isinstance(arg.value, cst.SimpleString) and arg.value.evaluated_value in _SPREADS:
                    found.append((self.rule.code(assign.targets[0].target), arg))
        return found

    @cached_property
    def _put_on_cuda(self) -> set[tuple[Function | None, str]]:
        """What is moved to CUDA as it is: ``net.to("cuda:0")``, of a program that is for CUDA, then."""
        return {
            (self.function(call), self.rule.code(call.func.value))
            for call in self.source.nodes_of(cst.Call)
            if isinstance(call.func, cst.Attribute) and call.func.attr.value in _MOVES
            if call.func.attr.value == "cuda" or any("cuda" in self.rule.code(arg) for arg in call.args[:1])
        }

    def _of_module(self, call: cst.Call, function: Function) -> Implied | None:
        """``torch.zeros(4).cuda()`` in a module, which whoever uses it moves to where it runs."""
        cls = function.cls
        if cls is None or not cls.is_module or not function.takes_self:
            return None
        moved = call.func.value if isinstance(call.func, cst.Attribute) and call.func.attr.value in _MOVES else None
        if function.role != CONSTRUCTOR and moved is not None and not self.flow.value(moved).place.is_host:
            return None  # x = x.cuda(): the step of a trainer, say
        return Implied(f"while `{cls.name}` is a module, and runs where it is moved to", cls.node)

    @cached_property
    def _anywhere(self) -> Chosen | None:
        """A device that was chosen by any part of the file."""
        for function in self.flow.scope.functions.values():
            found = self._of_function(function)
            # self.rows = rows.cuda()   and then   self.rows.device
            of_own = found is not None and re.match(r"self\.\w+\.", found.code) and not self._is_of_given(found.code)
            if found is not None and not of_own:
                return replace(found, owner="elsewhere")
        return None

    def is_fixed(self, node: cst.CSTNode) -> bool:
        """Whether the function around ``node`` says itself that it is for one kind: ``device = "cuda"``."""
        function = self.function(node)
        while function is not None:
            names = (name for name in function.assigned if is_device_name(name) and self._is_rebound(name, function))
            if any(
                not _is_either([text for where, text in self._assigned(name) if where is function]) for name in names
            ):
                return True
            function = function.outer
        return False

    def _of_function(self, function: Function) -> Chosen | None:
        if function not in self._functions:
            self._functions[function] = self._look_in(function)
        return self._functions[function]

    def _look_in(self, function: Function) -> Chosen | None:
        for param in function.params:
            if is_device_name(param.name.value) and not self._is_rebound(param.name.value, function):
                return Chosen(param.name.value, param, False, "parameter")
        for name in function.assigned:
            if is_device_name(name):
                for use in self._named.get((function, name), ()):
                    found = self._as_chosen(use, name, "function")
                    if found is not None:
                        return found
        for node in self._reads.get(function, ()):
            found = self._as_chosen(node, dotted(node), "function")
            if found is not None:
                return found
        return None

    def _of_class(self, cls: Class) -> Chosen | None:
        if cls not in self._classes:
            self._classes[cls] = self._look_in_class(cls)
        return self._classes[cls]

    def _look_in_class(self, cls: Class) -> Chosen | None:
        for owner in cls.lineage:
            for method in owner.methods.values():
                if method.is_property and is_device_name(method.name):
                    return Chosen(f"self.{method.name}", method.node, False, "class")
                for node in self._reads.get(method, ()):
                    path = dotted(node)
                    if path.startswith("self.") and (path.count(".") == 1 or self._is_of_given(path)):
                        found = self._as_chosen(node, path, "class")
                        if found is not None:
                            return found
        return None

    def _is_of_given(self, path: str) -> bool:
        """``self.net.device`` where ``self.net = net`` was handed in: else the class itself may put it on CUDA."""
        owner, _, kept = path.rpartition(".")[0].partition(".")
        made = self._assigned(kept)
        return owner == "self" and bool(made) and all(text in where.param_names for where, text in made if where)

    @cached_property
    def _of_file(self) -> Chosen | None:
        for (function, name), nodes in self._named.items():
            if function is None:
                for node in nodes:
                    found = self._as_chosen(node, name, "file")
                    if found is not None:
                        return found
        return None

    def _as_chosen(self, node: cst.BaseExpression, code: str, owner: str) -> Chosen | None:
        value = self.flow.value(node)
        if value.kind == NAME:
            if value.ref.startswith("torch."):
                return None
        elif value.kind == DEVICE:
            if value.place.kind in ("fixed", "host", "meta"):
                return None  # device = torch.device("cuda")
        elif value.kind != UNKNOWN_KIND or "." not in code:
            return None
        made = self._assigned(code.rpartition(".")[2])
        function = self.flow.function(node)
        texts = [text for where, text in made if "." in code or where is function]
        fixed = (
            _FIXED if value.kind != DEVICE else _NUMBERED
        )  # the flow knows of `exec(config)`, which changes a literal
        either = _is_either(texts)
        if texts and all(fixed.fullmatch(text) for text in texts) and not either:
            return None
        is_default = either or (bool(texts) and all(self._is_by_availability(text) for text in texts))
        # latents = encode(batch); latents.device
        head = code.partition(".")[0]
        made_here = function is not None and head in function.assigned and head not in function.param_names
        of_value = "." in code and not any(_SETTINGS.search(text) for text in self.assigned(head))
        return Chosen(code, node, is_default, owner, not (made_here and of_value))

    def _is_by_availability(self, code: str) -> bool:
        """``"cuda" if torch.cuda.is_available() else "cpu"``, also by a name for what that says."""
        match = _BY_FLAG.fullmatch(code)
        made = self.assigned(match[1]) if match is not None else []
        return _BY_AVAILABILITY.fullmatch(code) is not None or (
            bool(made) and all(is_available_test(each) for each in made)
        )

    def _is_rebound(self, name: str, function: Function) -> bool:
        """``def f(device): device = "cuda"``."""
        places = [self.flow.value(node).place for node in self._named.get((function, name), ())]
        return name in function.assigned and any(place.kind == "fixed" for place in places)

    @cached_property
    def _reads(self) -> dict[Function | None, list[cst.Attribute]]:
        """Attributes that name a device, by the function that reads them: ``x.device``, ``self.device``."""
        found: dict[Function | None, list[cst.Attribute]] = {}
        parents = self.source.parents
        for node in self.source.nodes_of(cst.Attribute):
            if not is_device_name(node.attr.value) or not dotted(node):
                continue
            above = parents.get(node)
            if isinstance(above, cst.AssignTarget) or (isinstance(above, cst.Call) and above.func is node):
                continue
            found.setdefault(self.flow.function(node), []).append(node)
        return found

    @cached_property
    def _named(self) -> dict[tuple[Function | None, str], list[cst.Name]]:
        """Plain names that name a device, by function."""
        found: dict[tuple[Function | None, str], list[cst.Name]] = {}
        for node in self.source.nodes_of(cst.Name):
            above = self.source.parents.get(node)
            if isinstance(above, cst.ImportAlias) or (isinstance(above, cst.Call) and above.func is node):
                continue  # from project import infer_device
            if is_device_name(node.value) and self.flow.value(node).kind != UNKNOWN_KIND:
                found.setdefault((self.flow.function(node), node.value), []).append(node)
        return found


_FIXED = re.compile(
    r"""(torch\.)?(device)?\(?\s*f?['"](cuda|cpu|mps)[^'"]*['"]\s*\)?|torch\.device\(['"]cuda['"],.*\)""", re.DOTALL
)
_NUMBERED = re.compile(
    r"""torch\.cuda\.current_device\(\)|(torch\.device\(\s*)?f['"]cuda:\{.*|torch\.device\(['"]cuda['"],.*\)""",
    re.DOTALL,
)
#: What holds the user's choices: `args = parser.parse_args()`, `accelerator = Accelerator()`.
_SETTINGS = re.compile(r"arg|pars|conf|cfg|opt|setting|Accelerator|Fabric|hparams")
#: Parameters of a function that hold choices, and nothing that has a place.
_CHOICES = re.compile(r"(^|_)(args?|opts?|options|conf\w*|cfg|settings?|hparams|params|flags)$", re.IGNORECASE)
_TEXT = re.compile(r"""(["'])[^"'\n]*\1""")
_HARMLESS = re.compile(r"is_available\(\)\)?$|autocast")


def _is_either(texts: list[str]) -> bool:
    """``device = "cpu"`` and, under a test, ``device = "cuda"``: what is assigned to a name chooses between them."""
    kinds = {match[3] for text in texts if (match := _FIXED.fullmatch(text)) is not None and match[3] is not None}
    return "cpu" in kinds and len(kinds) > 1


def _names(node: cst.CSTNode) -> set[str]:
    return {each.value for each in tree.walk(node) if isinstance(each, cst.Name)}


def is_device_name(name: str) -> bool:
    """A name that stands for the device; ``device_id`` is a number, and of CUDA's."""
    return names_device(name) and not name.endswith("_id")


def _is_moved(name: str, code: str) -> bool:
    """``mask = mask.cuda()``, which does not make ``if mask is not None:`` a question about devices."""
    return re.match(rf"(\w+\.)*{name}\.(to|cuda|cpu)\(", code) is not None


def _without_prose(code: str) -> str:
    """Code without the texts that are for people: ``field(metadata={"help": "runs on the GPU"})``."""
    return _TEXT.sub(lambda text: "" if " " in text[0] else text[0], code)


def told_to_device(rule: Rule, node: cst.BaseExpression) -> cst.BaseExpression:
    """``"cuda"`` of ``torch.device("cuda")``, and what is no ``torch.device`` as it is."""
    if isinstance(node, cst.Call) and rule.flow.scope.qualified(node.func) == "torch.device" and node.args:
        return node.args[0].value
    return node


def is_available_test(code: str) -> bool:
    """``torch.cuda.is_available()`` and nothing else."""
    return _AVAILABLE_ONLY.fullmatch(code) is not None


def asks_whether_available(rule: Rule, test: cst.BaseExpression) -> bool:
    """Whether a test is :func:`is_available_test`: few of all tests are, and code takes long to make."""
    words = tree.words(test)
    return ("is_available" in words or "device_count" in words) and is_available_test(rule.code(test))


def leaves(body: cst.BaseSuite, raises: bool = False) -> bool:
    """Whether a block ends by leaving the function or loop; ``raises``: the program, or with an error."""
    if not body.body:
        return False
    last = body.body[-1]
    small = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
    if isinstance(small, cst.Raise):
        return True
    if isinstance(small, cst.Return | cst.Continue | cst.Break):
        return not raises
    if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
        return dotted(small.value.func).rpartition(".")[2] in _EXITS
    return False
