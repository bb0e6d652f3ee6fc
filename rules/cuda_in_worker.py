from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.flow import torch_table as table
from devlint.flow.names import dotted
from devlint.flow.place import Place, from_string
from devlint.flow.scope import Class, Function
from devlint.flow.value import DATA, DEVICE, FUNCTION, INSTANCE, LIST, THING, Value, element
from devlint.rule import Rule
from devlint.rules._arguments import argument
from devlint.rules._moves import destination, short
from devlint.rules._places import where


class CudaInWorker(Rule):
    """A forked worker process uses CUDA.

    ## What it does
    Reports device work in the workers of a `DataLoader` that has some (`num_workers=4`): in `__getitem__` or `__iter__`
    of its dataset and the methods that these call, in its `collate_fn` and `worker_init_fn`; a dataset that holds
    tensors on a device; and device work in a function that `multiprocessing.Process` runs after CUDA was used.

    ## Why is this bad
    Workers are forked on Linux, and CUDA does not survive a fork: `Cannot re-initialize CUDA in forked subprocess`, as
    soon as the main process has used it. Where it has not, each worker starts CUDA for itself and takes hundreds of
    megabytes of device memory. What a worker gives is copied through shared memory of the host anyway: batches are
    moved by the loop that trains.

    ## Example
    ```python
    import torch
    from torch.utils.data import DataLoader


    def collate(samples):
        return torch.stack(samples).cuda()


    def loader(data):
        return DataLoader(data, batch_size=32, num_workers=4, collate_fn=collate)
    ```

    ## Use instead
    ```python
    import torch
    from torch.utils.data import DataLoader


    def loader(data):
        return DataLoader(data, batch_size=32, num_workers=4, pin_memory=True)


    def train(model, data, device):
        for x in loader(data):
            model(x.to(device, non_blocking=True))
    ```

    ## Fix safety
    No fix is offered: the move belongs into the loop over the loader.

    ## Limits
    Silent where the number of workers is not known or 0, where a file names `spawn` or `forkserver`, or its project
    does and calls `set_start_method` somewhere, and where the device is told to be the host or a condition decides.
    Loaders of another file are not seen: where a file makes none, what its datasets move to a device is tentative, once
    for each class. On Windows, on macOS and from Python 3.14 on, processes are not forked unless that is asked for.

    Not proved by running: imaginary devices live in one process, and survive a fork.

    ## References
    - [CUDA in multiprocessing](https://pytorch.org/docs/stable/notes/multiprocessing.html#cuda-in-multiprocessing)
    - [Multi-process data loading](https://pytorch.org/docs/stable/data.html#multi-process-data-loading)
    """

    group = "correctness"
    raises = True

    def check(self) -> None:
        text = self.source.text
        if "spawn" in text or "forkserver" in text:
            return
        loaders, processes = self.flow.calls(*_LOADERS), self.flow.calls(*_PROCESSES)
        datasets = [cls for cls in self.flow.scope.classes.values() if cls.is_dataset]
        if not (loaders or processes or datasets) or self._spawns_elsewhere():
            return
        for call in loaders:
            if self._has_workers(call):
                self._loader(call)
        if not loaders and not self.in_tests:
            self._samples(datasets)
        for call in processes:
            self._process(call)

    def _spawns_elsewhere(self) -> bool:
        """Whether another file of the project may set how all processes are started, and one names another way."""
        # train.py: mp.set_start_method("spawn")   is for the loaders of every file that it imports
        project = self.flow.project
        return (
            project is not None
            and project.some_file_says("writes set_start_method") is True
            and any(project.some_file_says(f"writes {way}") is True for way in ("spawn", "forkserver"))
        )

    # loaders ------------------------------------------------------------------------------------

    def _loader(self, call: cst.Call) -> None:
        for name, position in (("dataset", 0), ("collate_fn", 6), ("worker_init_fn", 10)):
            arg = argument(call, position, name)
            if arg is None:
                continue
            value = self.flow.value(arg.value)
            if name == "dataset":
                self._dataset(call, value)
            elif value.kind == FUNCTION and isinstance(value.ref, Function):
                self._touches({value.ref}, call, None)
            elif value.kind == INSTANCE and isinstance(value.ref, Class):
                called = value.ref.find_method("__call__")  # collate_fn=Collate(device)
                if called is not None:
                    self._touches(set(value.ref.reached(called)), call, value)
            elif isinstance(arg.value, cst.Lambda):
                self._touches_in(arg.value, call)

    def _dataset(self, call: cst.Call, value: Value) -> None:
        held = element(value) if value.kind == LIST else value
        if held.place.is_there and ((held.kind == THING and held.ref == "dataset") or held.is_tensor):
            notes = [self.note(held.origin, "they are there since here")] if held.origin is not None else []
            self.report(
                call,
                f"the loader's workers are forked, and its dataset reads tensors that are on {where(held.place)}",
                notes=notes,
            )
        elif value.kind == INSTANCE and isinstance(value.ref, Class):
            self._touches(_runs_in_workers(value.ref), call, value)

    def _samples(self, datasets: list[Class]) -> None:
        """What a dataset puts on a device sample by sample, for loaders that other files make."""
        # def __getitem__(self, at): return self.rows[at].to(self.device)
        for cls in datasets:
            functions = _runs_in_workers(cls)
            for move in self.flow.facts.moves.values():
                # text.to(labels.device)   where another sample is, which is on the host in a worker
                holder = dotted(move.target_node).rpartition(".")[0] if move.target_node is not None else ""
                if holder not in ("", "self") or self._is_conditional(move.node):
                    continue
                if move.target.is_there and self.flow.function(move.node) in functions:
                    told = f"`{cls.name}` copies each sample to {destination(self, move)} by itself"
                    self.report(move.node, f"{told}, and workers that are forked cannot", tentative=True)
                    break

    def _touches(self, functions: set[Function], loader: cst.Call, dataset: Value | None) -> None:
        for node, place in self._device_work(functions):
            if dataset is None or not self._told_host(dataset, place):
                self._report(node, loader)

    def _touches_in(self, function: cst.Lambda, loader: cst.Call) -> None:
        inside = set(tree.walk(function))
        for move in self.flow.facts.moves.values():
            if move.node in inside and _is_cuda(move.target):
                self._report(move.node, loader)

    def _report(self, node: cst.CSTNode, loader: cst.Call) -> None:
        self.report(
            node,
            f"`{short(self.code(node))}` runs in the workers of a loader: forked processes cannot use CUDA",
            notes=[self.note(loader, "this loader has workers")],
        )

    def _device_work(self, functions: set[Function]) -> list[tuple[cst.CSTNode, Place]]:
        """What surely uses the device in these functions, and which."""
        facts, flow = self.flow.facts, self.flow
        work = [(move.node, move.target) for move in facts.moves.values() if _is_cuda(move.target)]
        for call, name in facts.names.items():
            if name in _USES:
                work.append((call, Place("fixed", "cuda")))
            elif name in table.FACTORIES and argument(call, None, "device") is not None:
                place = flow.value(call).place
                if _is_cuda(place):
                    work.append((call, place))
        return [
            (node, place) for node, place in work if flow.function(node) in functions and not self._is_conditional(node)
        ]

    def _is_conditional(self, node: cst.CSTNode) -> bool:
        # if get_worker_info() is None: x = x.cuda()
        around = self.enclosing(node, cst.If, cst.IfExp, cst.Try, cst.Lambda, cst.FunctionDef)
        return isinstance(around, cst.If | cst.IfExp | cst.Try)

    def _told_host(self, dataset: Value, place: Place) -> bool:
        """Whether `self.device` is what the constructor was told, and that is the host or not known."""
        if place.kind == "fixed" or not place.name.startswith("self."):
            return False
        init = dataset.ref.find_method("__init__")
        made = dataset.origin
        if init is None or not isinstance(made, cst.Call):
            return True
        for statement, _ in self.flow.stores(dataset.ref, place.name[5:]):
            stored = getattr(statement, "value", None)
            if isinstance(stored, cst.Tuple):
                return True
            name = dotted(stored) if stored is not None else ""
            position = next((i for i, param in enumerate(init.params) if param.name.value == name), None)
            if position is None:
                continue
            given = argument(made, position - 1, name)
            told_by = given.value if given is not None else init.params[position].default  # OnHost(xs)
            if told_by is None:
                return True
            value = self.flow.value(told_by)
            told = from_string(value.text) if value.kind == DATA and value.text is not None else value.place
            return not (value.kind in (DEVICE, DATA) and told.is_there)
        return False

    # the number of workers ----------------------------------------------------------------------

    def _has_workers(self, call: cst.Call) -> bool:
        arg = argument(call, 5, "num_workers")
        if arg is None or argument(call, None, "multiprocessing_context") is not None:
            return False
        return self._is_positive(arg.value, call)

    def _is_positive(self, node: cst.BaseExpression, call: cst.Call) -> bool:
        """Surely more than 0."""
        if isinstance(node, cst.Integer):
            return node.value.strip("0_") != ""
        if isinstance(node, cst.Call):
            return dotted(node.func).rpartition(".")[2] == "cpu_count"
        if isinstance(node, cst.Attribute):
            default = self._default_of(node.attr.value)
            return default is not None and self._is_positive(default, call)
        if isinstance(node, cst.Name):
            function = self.flow.function(call)
            if function is not None and node.value in function.param_names:
                return False
            assigns = self.source.nodes_of(cst.Assign)
            bound = [a.value for a in assigns if any(dotted(t.target) == node.value for t in a.targets)]
            return len(bound) == 1 and not isinstance(bound[0], cst.Name) and self._is_positive(bound[0], call)
        return False

    def _default_of(self, option: str) -> cst.BaseExpression | None:
        """The default of an option of the command line: ``add_argument("--workers", default=4)``."""
        for call in self.source.nodes_of(cst.Call):
            if isinstance(call.func, cst.Attribute) and call.func.attr.value == "add_argument":
                names = [
                    self.code(arg.value).strip("\"'-").replace("-", "_") for arg in call.args if arg.keyword is None
                ]
                default = argument(call, None, "default")
                if option in names and default is not None:
                    return default.value
        return None

    # processes ----------------------------------------------------------------------------------

    def _process(self, call: cst.Call) -> None:
        """``Process(target=work)`` where this function has used CUDA before."""
        arg = argument(call, 1, "target")
        value = self.flow.value(arg.value) if arg is not None else None
        function = self.flow.function(call)
        if value is None or function is None or value.kind != FUNCTION or not isinstance(value.ref, Function):
            return
        start = self.source.offsets(call)[0]
        before = [node for node, _ in self._device_work({function}) if self.source.offsets(node)[0] < start]
        if not before:
            return
        for node, _ in self._device_work({value.ref}):
            self.report(
                node,
                f"`{short(self.code(node))}` runs in a process that is forked after CUDA was used",
                notes=[self.note(before[0], "this uses CUDA"), self.note(call, "the process is made here")],
            )


def _runs_in_workers(cls: Class) -> set[Function]:
    """The methods that give a dataset's samples, and those that they call on ``self``."""
    methods = [cls.find_method(name) for name in ("__getitem__", "__getitems__", "__iter__")]
    return {each for method in methods if method is not None for each in cls.reached(method)}


def _is_cuda(place: Place) -> bool:
    return place.kind == "device" or (place.kind == "fixed" and place.name.startswith("cuda"))


_LOADERS = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
_PROCESSES = ("multiprocessing.Process", "torch.multiprocessing.Process")
_USES = frozenset({"torch.cuda.set_device", "torch.cuda.synchronize", "torch.cuda.current_stream"})
