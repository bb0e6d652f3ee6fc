from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.finding import Note, Span
from devlint.flow.hypothesis import names_device
from devlint.flow.names import dotted, target_names
from devlint.flow.scope import Function
from devlint.flow.value import DICT, TENSOR, THING
from devlint.rule import Rule
from devlint.rules._files import is_known_file, made
from devlint.rules._moves import short
from devlint.rules._recurs import function_of
from devlint.rules._same_run import is_of_same_run
from devlint.rules._training import is_inside
from devlint.testcode import is_test_file


class LoadWithoutMapLocation(Rule):
    """A checkpoint is loaded to the devices it was saved from, whatever devices there are now.

    ## What it does
    Reports `torch.load(file)` without `map_location` where what is loaded is a checkpoint: its content goes into
    `load_state_dict`, it is used as a model, or the file is called a checkpoint, weights or a snapshot.

    ## Why is this bad
    A checkpoint remembers the device of each tensor. Without `map_location`, a checkpoint that was saved from a GPU
    cannot be loaded on a machine without one ("Attempting to deserialize object on a CUDA device but
    torch.cuda.is_available() is False"), nor one saved from `cuda:3` where there are two. Under several processes every
    one of them loads its copy onto the device of the process that saved it, and that device runs out of memory.

    ## Example
    ```python
    import torch


    def resume(model, path):
        checkpoint = torch.load(path)
        model.load_state_dict(checkpoint["model"])
    ```

    ## Use instead
    ```python
    import torch


    def resume(model, path):
        checkpoint = torch.load(path, map_location="cpu")
        model.load_state_dict(checkpoint["model"])
    ```

    ## Fix safety
    The fix adds the function's own `map_location` or `device` argument where it takes one, else `map_location="cpu"`.
    It is unsafe: code that relied on tensors being on the saved device has to move them. `load_state_dict` copies
    values to where the parameters are, so nothing else changes for it.

    ## Limits
    Loads in statements right below each other, of the same file in one function, or in one that does not hand its
    `map_location` on, are one finding. Silent for data sets, scores and other files that nothing shows to be
    checkpoints (that the folder is called so is not enough where the file has another name), in tests, in code that
    imports a module which its own project lacks, for what the same run saved or trained just before (in the same
    function, in one that was called above with the same file, or by fitting what was given the callback that names the
    file; the devices are there then, but where several processes read it, each still does so onto that of the one that
    saved), for what stops training early, for files that are downloaded, lie in a temporary folder of the function or
    belong to one process (also where the calls in the file say so), for the one file that a script names itself to
    write its content anew, where the file saves from the host only (what it moved, made, or read there) or gathers what
    FSDP sharded, where the function, or all in the file that call it, or a file that never thinks of the host, moves to
    CUDA whatever there is, for a call that is tried first and repeated with `map_location`, and where another branch
    for machines without a GPU gives it. Whether the file really came from a GPU cannot be seen in the code.

    ## References
    - [torch.load](https://pytorch.org/docs/stable/generated/torch.load.html)
    - [Saving and loading models across devices](https://pytorch.org/tutorials/recipes/recipes/save_load_across_devices.html)
    """

    group = "correctness"
    fixable = "always"

    def check(self) -> None:
        if is_test_file(self.source.path) or self._is_out_of_date():
            return  # what a test loads it has just saved
        runs: list[list[tuple[cst.Call, str, str]]] = []
        calls = dict.fromkeys(self.flow.calls("torch.load"))  # a loop is followed more than once
        for call in sorted(calls, key=self.source.offsets):
            if _has_location(call) or not call.args:
                continue
            function = self.flow.function(call)
            taken = _location_parameter(function)
            used = self._used(call, function)
            what = used or self._named(call, function, taken)
            if what is None or is_of_same_run(self, call) or self._has_another_way(call):
                continue
            if is_known_file(self, call) or self._is_converted_once(call) or self._is_of_host(call, function):
                continue
            if self._needs_cuda(call, function) or self._is_called_for_cuda(function):
                continue
            if self._is_for_cuda_alone(function):
                continue
            if runs and self._follows(runs[-1][-1][0], call):
                runs[-1].append((call, what, taken or '"cpu"'))
            else:
                runs.append([(call, what, taken or '"cpu"')])
        for run in runs:
            self._report(run)

    def _is_out_of_date(self) -> bool:
        """Whether the file imports a module that its own project no longer has: it stops before it loads anything."""
        project = self.flow.scope.project
        return project is not None and any(
            not node.relative
            and node.module is not None
            and not isinstance(
                self.enclosing(node, cst.If, cst.Try, cst.FunctionDef), cst.If | cst.Try | cst.FunctionDef
            )
            and not _GENERATED.search(dotted(node.module))
            and project.lacks(dotted(node.module))
            for node in self.source.nodes_of(cst.ImportFrom)
        )

    def _report(self, run: list[tuple[cst.Call, str, str]]) -> None:
        call, what, location = run[0]
        edits = [self.add_argument(each, f"map_location={location}") for each, _, location in run]
        fix = self.fix(f"add `map_location={location}`", *(e for e in edits if e is not None), safe=False)
        why = "is not handed on" if location == "map_location" else "is missing"
        self.report(
            call,
            f"{what} is loaded to the devices that it was saved from: `map_location` {why}",
            notes=[self.note(each, "here, too") for each, _, _ in run[1:]],
            fix=fix if None not in edits else None,
        )

    def _learned_elsewhere(self, node: cst.CSTNode, span: Span, notes: tuple[Note, ...]) -> tuple[Note, ...]:
        """None: that the class around is a module, as another file says, has nothing to do with what it loads."""
        return ()

    def _follows(self, before: cst.Call, call: cst.Call) -> bool:
        """Whether a call loads what another one loads in the same function, or in the statement right above it."""
        function = self.flow.function(call)
        if self.flow.function(before) is function is not None and (
            # if old: cp = torch.load(file); ...  else: cp = torch.load(file); ...
            self.code(before) == self.code(call) or _location_parameter(function) == "map_location"
        ):
            return True
        first, second = (self.enclosing(each, cst.SimpleStatementLine) for each in (before, call))
        if first is None or second is None:
            return False
        block = self.parent(first)
        if block is not self.parent(second) or not isinstance(block, cst.IndentedBlock | cst.Module):
            return False
        lines = list(block.body)
        return lines.index(second) - lines.index(first) == 1

    # what shows that it is a checkpoint -----------------------------------------------------------

    def _used(self, call: cst.Call, function: Function | None) -> str | None:
        """What is loaded by what is done with it, as the start of the message."""
        uses = (self._consumer(call), *(self._use_of(name, call, function) for name in self._assigned(call)))
        return next((used for used in uses if used is not None), None)

    def _named(self, call: cst.Call, function: Function | None, taken: str | None) -> str | None:
        """What is loaded by what it is called; ``None`` where nothing shows it to be a checkpoint."""
        names = self._assigned(call)
        if any(_SCORE.search(name) or self._is_of_no_use(name, function) for name in names):
            return None
        file = self.code(call.args[0].value)
        if _DATA.search(file):
            return None  # torch.load("train_features.pt")
        if taken != "map_location" and _is_of_folder_alone(call.args[0].value):
            file = ""  # torch.load(os.path.join(checkpoint_dir, "common.pt"))
        for word in (*names, file):
            if _CHECKPOINT.search(word):
                return f"checkpoint `{short(word)}`"
        return f"`{short(file)}`" if taken == "map_location" else None

    def _consumer(self, node: cst.CSTNode) -> str | None:
        """What a value is by what is done with it: ``model.load_state_dict(torch.load(f)["model"])``."""
        child, parent = node, self.parent(node)
        while isinstance(parent, cst.Subscript | cst.Attribute | cst.Call | cst.Arg):
            if isinstance(parent, cst.Call) and child is not parent.func:
                name = dotted(parent.func) or self.code(parent.func)  # models[i].load_state_dict(torch.load(f))
                if not _takes_weights(name) or self._holds_numbers(name, parent):
                    return None
                return f"the checkpoint for `{short(name)}`"
            if isinstance(parent, cst.Attribute) and parent.attr.value in _OF_MODELS:
                return "the model"  # torch.load("net.pt").eval()
            child, parent = parent, self.parent(parent)
        return None

    def _holds_numbers(self, name: str, node: cst.CSTNode) -> bool:
        """``scaler.load_state_dict(torch.load(f))``, ``self.load_state_dict(torch.load(f))`` of a sampler."""
        function = self.flow.function(node)
        if name.startswith("self.") and name.count(".") == 1 and function is not None and function.cls is not None:
            name = function.cls.name
        return _NUMBERS.search(name) is not None

    def _assigned(self, call: cst.Call) -> list[str]:
        """Names and attributes that the loaded value, or a part of it, is bound to."""
        node: cst.CSTNode = call
        parent = self.parent(call)
        while isinstance(parent, cst.Subscript | cst.Attribute) or (
            isinstance(parent, cst.Call) and parent.func is node  # torch.load(f).get("model")
        ):
            node, parent = parent, self.parent(parent)
        if isinstance(parent, cst.Assign) and parent.value is node:
            return [self.code(target.target) for target in parent.targets]
        if isinstance(parent, cst.AnnAssign | cst.NamedExpr) and parent.value is node:
            return [self.code(parent.target)]
        return []

    def _use_of(self, name: str, call: cst.Call, function: Function | None) -> str | None:
        """The first call below that takes the name, or a part of it, as weights."""
        after = self.source.offsets(call)[1]
        for other in self.source.nodes_of(cst.Name):
            if other.value != name.rpartition(".")[2] or self.flow.function(other) is not function:
                continue
            if self.source.offsets(other)[0] < after:
                continue
            node: cst.CSTNode = other
            parent = self.parent(other)
            if isinstance(parent, cst.Attribute) and parent.attr is other:
                node, parent = parent, self.parent(parent)
            if self.code(node) != name:
                continue
            used = self._consumer(node)
            if used is not None:
                return used
        return None

    def _is_of_no_use(self, name: str, function: Function | None) -> bool:
        """Whether a name is not read, counted, asked for settings alone (`ckpt["cfg"]`), or added to and saved."""
        reads = [
            node
            for node in self.source.nodes_of(cst.Name)
            if node.value == name
            and self.flow.function(node) is function
            and not isinstance(above := self.parent(node), cst.AssignTarget)
            and not (isinstance(above, cst.AnnAssign) and above.target is node)
        ]
        if name.isidentifier() and all(
            self._gives_settings(node) or self._is_kept(node) or self._goes_to_numbers(node) for node in reads
        ):
            return True
        calls = [self.parent(arg) for arg in map(self.parent, reads) if isinstance(arg, cst.Arg)]
        return any(isinstance(call, cst.Call) and self.code(call.func) == "len" for call in calls)

    def _is_kept(self, node: cst.CSTNode) -> bool:
        """``meta["weights"] = weights; torch.save(meta, file)``: nothing says that it holds tensors."""
        above = self.parent(node)
        if isinstance(above, cst.Arg):
            call = self.parent(above)
            return isinstance(call, cst.Call) and dotted(call.func).rpartition(".")[2] == "save"
        while isinstance(above, cst.Subscript):
            above = self.parent(above)
        return isinstance(above, cst.AssignTarget)

    def _goes_to_numbers(self, node: cst.CSTNode) -> bool:
        """``state = torch.load(f); scheduler.load_state_dict(state)``"""
        call = self.parent(arg) if isinstance(arg := self.parent(node), cst.Arg) else None
        if not isinstance(call, cst.Call):
            return False
        name = dotted(call.func)
        return _takes_weights(name) and self._holds_numbers(name, call)

    def _gives_settings(self, node: cst.CSTNode) -> bool:
        parent = self.parent(node)
        if not isinstance(parent, cst.Subscript) or len(parent.slice) != 1:
            return False
        index = parent.slice[0].slice
        key = index.value if isinstance(index, cst.Index) else None
        return isinstance(key, cst.SimpleString) and _SETTINGS.search(str(key.evaluated_value)) is not None

    # what makes it right as it is -----------------------------------------------------------------

    def _is_of_host(self, call: cst.Call, function: Function | None) -> bool:
        """Whether all that the file saves is on the host, or is gathered there."""
        if _GATHERED.search(self.source.text):
            return True  # with FSDP.state_dict_type(model, FULL, FullStateDictConfig(offload_to_cpu=True))
        saved = [
            save.args[0].value
            for save in self.flow.calls("torch.save")
            if save.args and not self._is_saved_again(save.args[0].value)
        ]
        # torch.save(vectors, f)  is not what  net.load_state_dict(torch.load(f))  reads
        kinds = (TENSOR, THING) if self._is_one_tensor(call, function) else (THING,)
        return bool(saved) and all(self._state_of_host(node, kinds) for node in saved)

    def _is_one_tensor(self, call: cst.Call, function: Function | None) -> bool:
        """``vectors = torch.load(f); vectors.size(1)``, ``weight.copy_(vectors)``."""
        names = self._assigned(call)
        reads = [n for n in self.source.nodes_of(cst.Name) if n.value in names and self.flow.function(n) is function]
        for above in map(self.parent, reads):
            if isinstance(above, cst.Attribute) and above.attr.value in ("size", "shape", "numel"):
                return True
            copied = self.parent(above) if isinstance(above, cst.Arg) else None
            if isinstance(copied, cst.Call) and dotted(copied.func).endswith(".copy_"):
                return True
        return False

    def _is_saved_again(self, node: cst.BaseExpression) -> bool:
        """``pkg = torch.load(f); torch.save(pkg, g)``: it is where whoever wrote it first had it."""
        return any(
            not _has_location(load)
            and self.code(node) in self._assigned(load)
            and self.flow.function(load) is self.flow.function(node)
            for load in self.flow.calls("torch.load")
        )

    def _state_of_host(self, node: cst.BaseExpression, kinds: tuple[str, ...]) -> bool:
        """``net.cpu(); torch.save({"net": net.state_dict(), "epoch": epoch}, f)``."""
        value = self.flow.value(node)
        if value.kind in kinds and value.place.is_host:
            return True  # weights = torch.load(f, "cpu")["weights"]; torch.save(weights, g)
        node = made(self, node)
        if isinstance(node, cst.Dict):
            states = [
                each.value
                for each in node.elements
                if not (isinstance(each, cst.DictElement) and self._is_setting(each, kinds))
            ]
            return bool(states) and all(self._state_of_host(state, kinds) for state in states)
        if not (
            isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "state_dict"
        ):
            return False
        name, before = self.code(node.func.value), self.source.offsets(node)[0]
        moves = [
            (self.source.offsets(move.node)[0], move.target.is_host)
            for move in self.flow.facts.moves.values()
            if self._root(move.receiver) == name and self.flow.function(move.node) is self.flow.function(node)
        ]
        earlier = [move for move in moves if move[0] < before]
        return bool(earlier) and max(earlier)[1]

    def _is_setting(self, element: cst.DictElement, kinds: tuple[str, ...]) -> bool:
        """Whether an entry of what is saved says nothing: ``"epoch": epoch``, ``"config": to_yaml(config)``."""
        key, node = element.key, made(self, element.value)
        if isinstance(key, cst.SimpleString) and _SETTINGS.search(str(key.evaluated_value)):
            return True
        value = self.flow.value(element.value)
        if value.kind == TENSOR and value.place.is_host:
            return TENSOR not in kinds  # {"net": net.state_dict(), "mean": torch.zeros(3)}
        if isinstance(element.value, cst.Name):
            is_state = isinstance(node, cst.Call) and dotted(node.func).endswith("state_dict")
            return value.kind not in (TENSOR, THING, DICT) and not is_state
        return isinstance(node, cst.Integer | cst.Float | cst.SimpleString)

    def _is_converted_once(self, call: cst.Call) -> bool:
        """Whether a script names the one file that it reads, and does nothing but write its content anew."""
        if self.flow.function(call) is not None or not isinstance(made(self, call.args[0].value), cst.SimpleString):
            return False
        if _OF_DEVICES.search(self.source.text):
            return False
        called = {node.attr.value for node in self.source.nodes_of(cst.Attribute)}
        writes = bool(self.flow.calls("torch.save")) or not _WRITES.isdisjoint(called)
        return writes and _TRAINS.isdisjoint(called)

    def _needs_cuda(self, call: cst.Call, function: Function | None) -> bool:
        """Whether the same function moves what is loaded, or loads it into what it moves, to CUDA and nowhere else:
        ``net = Net().cuda(); net.load_state_dict(torch.load(f))``."""
        names = self._made_of(set(self._assigned(call)), function)
        consumers: list[cst.CSTNode] = [call]
        consumers += [
            n for n in self.source.nodes_of(cst.Name) if n.value in names and self.flow.function(n) is function
        ]
        for node in consumers:
            above = self.parent(node)
            while isinstance(above, cst.Subscript | cst.Attribute | cst.Arg | cst.Call):
                called = above.func if isinstance(above, cst.Call) else None
                if isinstance(called, cst.Attribute) and called.attr.value == "load_state_dict":
                    names.add(self.code(called.value))
                above = self.parent(above)
        return bool(self._moves_to_cuda(names, function))

    def _is_called_for_cuda(self, function: Function | None) -> bool:
        """Whether all that call a function need CUDA for what it gives, or for what they hand to it:
        ``load(net, f); net.cuda()``."""
        if function is None:
            return False
        needs = [self._goes_to_cuda(c) for c in self.source.nodes_of(cst.Call) if function_of(self.flow, c) is function]
        return bool(needs) and all(needs)

    def _goes_to_cuda(self, call: cst.Call) -> bool:
        caller = self.flow.function(call)
        names = self._made_of({*self._assigned(call), *(self.code(arg.value) for arg in call.args)}, caller)
        for move in self._moves_to_cuda(names, caller):
            block = self.enclosing(move, cst.IndentedBlock, cst.Module)
            if block is not None and is_inside(self.flow, call, block):
                return True  # not  net = load(f); if args.publish: net.cuda()
        return False

    def _moves_to_cuda(self, names: set[str], function: Function | None) -> list[cst.CSTNode]:
        """The moves of one of the names to CUDA, whatever there is."""
        return [
            move.node
            for move in self.flow.facts.moves.values()
            if move.target.kind == "fixed"
            and move.target.name.startswith("cuda")
            and self.flow.function(move.node) is function
            and self._root(move.receiver) in names
            and not self._is_asked_for(move.node)
        ]

    def _is_for_cuda_alone(self, function: Function | None) -> bool:
        """Whether the file puts something on CUDA whatever there is, and nowhere thinks of the host: there is no other
        machine for it, and what it saved comes from where it loads it to."""
        if _OF_ANY_MACHINE.search(self.source.text):
            return False
        moves = self.flow.facts.moves.values()
        if any(move.target.is_host and self.flow.function(move.node) is function for move in moves):
            return False  # def load(path): ...; return model.cpu()
        return any(
            move.target.kind == "fixed"
            and move.target.name.startswith("cuda")
            and isinstance(self.enclosing(move.node, cst.If, cst.IfExp, cst.FunctionDef), cst.FunctionDef)
            for move in moves
        )

    def _made_of(self, names: set[str], function: Function | None) -> set[str]:
        """The names, and those that get parts of what they hold: ``for k, v in state.items(): new[k[7:]] = v``."""
        found = set(names)
        loops = [(each.iter, each.target) for each in self.source.nodes_of(cst.For)]
        assigned = [(each.value, to.target) for each in self.source.nodes_of(cst.Assign) for to in each.targets]
        for read, target in [*loops, *assigned]:
            into: cst.BaseExpression = target
            while isinstance(into, cst.Subscript):
                into = into.value
            here = self.flow.function(read) is function
            if here and any(isinstance(part, cst.Name) and part.value in found for part in tree.walk(read)):
                target_names(into, found)
        return found

    def _root(self, node: cst.BaseExpression) -> str:
        """``net`` of ``net.eval()``; the name that what is moved is bound to: ``net = Net().cuda()``."""
        above = self.parent(node)
        while isinstance(above, cst.Attribute | cst.Call):
            above = self.parent(above)
        if isinstance(above, cst.Assign) and len(above.targets) == 1:
            return self.code(above.targets[0].target)
        while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            node = node.func.value
        return self.code(node)

    def _is_asked_for(self, node: cst.CSTNode) -> bool:
        above = self.parent(node)
        while above is not None and not isinstance(above, cst.FunctionDef):
            if isinstance(above, cst.If | cst.IfExp) and _AVAILABLE.search(self.code(above.test)):
                return True
            above = self.parent(above)
        return False

    def _has_another_way(self, call: cst.Call) -> bool:
        """Whether a handler or another branch makes the same load with a place for it."""
        child: cst.CSTNode = call
        above = self.parent(call)
        while above is not None and not isinstance(above, cst.FunctionDef | cst.ClassDef):
            if isinstance(above, cst.IfExp | cst.If | cst.Try) and child is not getattr(above, "test", None):
                # if not torch.cuda.is_available(): torch.load(f, map_location="cpu") else: torch.load(f)
                for other in self.source.nodes_of(cst.Call):
                    if other is call or self.flow.scope.qualified(other.func) != "torch.load":
                        continue
                    if _has_location(other) and is_inside(self.flow, other, above):
                        return True
                if isinstance(above, cst.If) and child is above.body and _AVAILABLE.search(self.code(above.test)):
                    return True
            child, above = above, self.parent(above)
        return False


def _has_location(call: cst.Call) -> bool:
    """``torch.load(f, device)``, ``map_location=``, or ``*args`` and ``**kwargs`` that may hold it."""
    return (len(call.args) > 1 and call.args[1].keyword is None) or any(
        arg.star or (arg.keyword is not None and arg.keyword.value == "map_location") for arg in call.args
    )


def _is_of_folder_alone(file: cst.BaseExpression) -> bool:
    """Whether a folder is called after checkpoints, and the file in it is called something else."""
    last: cst.BaseExpression = file
    if isinstance(file, cst.Call) and file.args and dotted(file.func).rpartition(".")[2] in ("join", "joinpath"):
        last = file.args[-1].value
    elif isinstance(file, cst.BinaryOperation):
        last = file.right
    return last is not file and isinstance(last, cst.SimpleString) and not _WEIGHTS.search(str(last.evaluated_value))


def _location_parameter(function: Function | None) -> str | None:
    if function is None or function.name.startswith("__"):
        return None
    for param in function.params:
        name = param.name.value
        if name == "map_location" or (names_device(name) and "id" not in name.split("_")):
            return name
    return None


def _takes_weights(name: str) -> bool:
    last = name.rpartition(".")[2].lower()
    return "load_state_dict" in last or ("state_dict" in last and last.startswith(("load", "set", "restore")))


#: Holds numbers, or data that is prepared on the host.
_NUMBERS = re.compile(
    r"transform(?!er)|scaler|schedul|sampler|loader|callback|engine|trainer|early|meter", re.IGNORECASE
)
#: Modules that are written or compiled where a package is built.
_GENERATED = re.compile(r"\._|version|_pb2|\bext\b|_cuda|_cpp")
#: What one number is called, or a few.
_SCORE = re.compile(r"(^|_)(scores?|metrics?|loss|losses|acc|accuracy)$")
_OF_MODELS = frozenset({"eval", "train", "parameters", "state_dict", "named_parameters"})
_CHECKPOINT = re.compile(r"checkpoint|ckpt|snapshot|state_?dict|weights|pretrained|resume", re.IGNORECASE)
#: Entries of a checkpoint that are no tensors.
_SETTINGS = re.compile(r"(^|[_.])(cfg|config|args|hparams|hyper_parameters|epoch|step|version|vocab)$")
_DATA = re.compile(r"data(?!_?parallel)|feature|sample|cache|vocab|graph|target|label|embedding", re.IGNORECASE)
#: What files that hold weights are called.
_WEIGHTS = re.compile(
    r"checkpoint|ckpt|cp|snapshot|state|weight|model|net|param|pretrained|best|last|latest|final|epoch|step|iter"
    r"|encoder|decoder|head|adapter|lora|ema|actor|critic|policy|gen|disc|optim|backbone|vae|train|save|backup|resume|\d",
    re.IGNORECASE,
)
#: What a script that trains calls, and one that writes a model.
_TRAINS = frozenset({"backward", "fit"})
_WRITES = frozenset({"save_pretrained", "save_to", "push_to_hub", "save_file"})
_OF_DEVICES = re.compile(r"cuda|device|gpu", re.IGNORECASE)
_GATHERED = re.compile(r"StateDictType|StateDictConfig|state_dict_type|StateDictOptions")
_OF_ANY_MACHINE = re.compile(r"""is_available|["']cpu["']|no_cuda|use_cuda|is_cuda|no_gpu|use_gpu|map_location""")
_AVAILABLE = re.compile(r"is_available|cuda|gpu|device", re.IGNORECASE)
