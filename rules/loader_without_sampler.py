from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.flow.loops import loop_of
from devlint.flow.names import dotted
from devlint.flow.value import LOADER, Value
from devlint.rule import Rule
from devlint.rules._distributed import NOT_TRAINED_ON, argument, bound_name, is_none, takes_more, wrappings
from devlint.rules._moves import short

#: Whatever gives each process a part of the data, or makes data that is different in each.
_SHARES = re.compile(
    r"sampler|shard|subset|iterable|webdataset|split|prepare|partition|num_replicas|scatter|^rand|accelerat|lightning|"
    r"deepspeed|ffcv|dali|world_size|num_processes",
    re.I,
)

_LOADERS = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
_SAMPLERS = ("torch.utils.data.distributed.DistributedSampler", "torch.utils.data.DistributedSampler")


class LoaderWithoutSampler(Rule):
    """Several processes train one model, and each goes through all of the data.

    ## What it does
    Reports a `DataLoader` without a sampler whose batches train a model in the function that wraps the model in
    `DistributedDataParallel`, in a file in which nothing shares the data out. Reports, too, a `DataLoader` without a
    sampler beside a `DistributedSampler` of the same data that is given to nobody.

    ## Why is this bad
    Each process works through the whole data set in every epoch: an epoch takes as long as with one process, and is as
    many epochs as there are processes. Without shuffling all of them compute the very same gradients.

    ## Example
    ```python
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader


    def train(model, dataset, optimizer, rank):
        model = DistributedDataParallel(model.to(rank), device_ids=[rank])
        loader = DataLoader(dataset, batch_size=32, shuffle=True)
        for x, y in loader:
            optimizer.zero_grad()
            model(x, y).backward()
            optimizer.step()
    ```

    ## Use instead
    ```python
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler


    def train(model, dataset, optimizer, rank):
        model = DistributedDataParallel(model.to(rank), device_ids=[rank])
        loader = DataLoader(dataset, batch_size=32, sampler=DistributedSampler(dataset))
        for x, y in loader:
            optimizer.zero_grad()
            model(x, y).backward()
            optimizer.step()
    ```

    ## Limits
    Silent where the loader is made in another function, where the file names samplers, shards, splits or subsets, or
    makes its data at random. Held back as tentative: tests, data that are handed in and not shuffled, which may
    share themselves out, and a sampler that is forgotten for data which are not trained on.

    Not proved by running: it takes several processes.

    ## References
    - [torch.utils.data.distributed.DistributedSampler](https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler)
    """

    group = "distributed"
    fixable = "never"

    def check(self) -> None:
        if "DistributedSampler" in self.source.text:
            self._forgotten()
        wrapped = {self.flow.function(call): call for call in wrappings(self.flow)}
        if not wrapped or any(_SHARES.search(name.value) for name in self.source.nodes_of(cst.Name)):
            return  # dataset = rows[dist.get_rank() :: dist.get_world_size()]
        for loader in self.flow.calls(*_LOADERS):
            function = self.flow.function(loader)
            if function not in wrapped or not self._takes_all(loader) or not self._trains(loader):
                continue
            self.report(
                loader,
                f"each process goes through all of `{short(self.code(loader.args[0].value))}`: nothing shares it out",
                notes=[self.note(wrapped[function], "one model is trained by several processes")],
                tentative=not self._is_whole(loader) or self.in_tests,
            )

    def _forgotten(self) -> None:
        """``sampler = DistributedSampler(rows)`` and then ``DataLoader(rows, shuffle=True)``."""
        loaders = dict.fromkeys(self.flow.calls(*_LOADERS))
        for sampler in dict.fromkeys(self.flow.calls(*_SAMPLERS)):
            name, data = bound_name(self.flow, sampler), argument(sampler, 0, "dataset")
            if not name or data is None or self._is_given_on(name, sampler):
                continue
            for loader in loaders:
                given = argument(loader, 0, "dataset")
                here = self.flow.function(loader) is self.flow.function(sampler)
                if not here or given is None or self.code(given) != self.code(data) or self._has_sampler(loader):
                    continue
                names = (name, bound_name(self.flow, loader), self.code(data))
                self.report(
                    loader,
                    f"each process goes through all of `{short(self.code(given))}`: no loader is given `{name}`",
                    notes=[self.note(sampler, "this would share it out")],
                    tentative=any(NOT_TRAINED_ON.search(each) for each in names) or self.in_tests,
                )

    def _is_given_on(self, name: str, sampler: cst.Call) -> bool:
        """Whether anything reads the sampler but to tell it the epoch, or to ask whether there is one."""
        kinds = (cst.ClassDef,) if "." in name else (cst.FunctionDef,)
        around = self.enclosing(sampler, *kinds) or self.source.module
        return any(
            isinstance(node, cst.Name | cst.Attribute) and dotted(node) == name and self._hands_on(node)
            for node in tree.walk(around)
        )

    def _hands_on(self, node: cst.Name | cst.Attribute) -> bool:
        above = self.parent(node)
        if isinstance(above, cst.Attribute):
            # loader.sampler is another one; sampler.set_epoch(epoch) is for its sake alone
            return above.attr is not node and above.attr.value != "set_epoch"
        if isinstance(above, cst.Arg):
            return above.keyword is not node
        if isinstance(above, cst.Comparison):  # DataLoader(rows, shuffle=sampler is None)
            return not any(is_none(each.comparator) for each in above.comparisons)
        return not isinstance(above, cst.AssignTarget | cst.AnnAssign | cst.Param | cst.UnaryOperation | cst.If)

    def _has_sampler(self, loader: cst.Call) -> bool:
        if takes_more(loader):
            return True  # DataLoader(rows, **options)
        return not (is_none(argument(loader, 3, "sampler")) and is_none(argument(loader, 4, "batch_sampler")))

    def _is_whole(self, loader: cst.Call) -> bool:
        """Whether the data are known not to share themselves out: an iterable data set cannot be shuffled."""
        shuffle, data = argument(loader, 2, "shuffle"), loader.args[0].value
        return dotted(shuffle) == "True" or (
            isinstance(data, cst.Name)
            and any(
                isinstance(assign.value, cst.Call) and dotted(target.target) == data.value
                for assign in self.source.nodes_of(cst.Assign)
                for target in assign.targets
            )
        )

    def _takes_all(self, loader: cst.Call) -> bool:
        if not loader.args or NOT_TRAINED_ON.search(bound_name(self.flow, loader)):
            return False
        return not self._has_sampler(loader)

    def _trains(self, loader: cst.Call) -> bool:
        """Whether a loop through the loader goes backward, in the same function."""
        function = self.flow.function(loader)
        for loop in self.source.nodes_of(cst.For):
            over = self.flow.value(loop.iter)
            given = over.ref if isinstance(over.ref, Value) else over
            if self.flow.function(loop) is not function or not self._is_of(loop, given, loader):
                continue
            for node in tree.walk(loop.body):
                if isinstance(node, cst.Attribute) and node.attr.value == "backward":
                    return loop_of(self.flow, node) is not None
        return False

    def _is_of(self, loop: cst.For, value: Value, loader: cst.Call) -> bool:
        if value.kind == LOADER and value.origin is loader:
            return True
        name = bound_name(self.flow, loader)
        names = {node.value for node in tree.walk(loop.iter) if isinstance(node, cst.Name)}
        return bool(name) and name in names
