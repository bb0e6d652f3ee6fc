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
from devlint.testcode import is_test_file

#: Whatever gives each process a part of the data, or makes data that is different in each.
_SHARES = re.compile(
    r"sampler|shard|subset|iterable|webdataset|split|prepare|partition|num_replicas|scatter|^rand|accelerat|lightning|"
    r"deepspeed|ffcv|dali|world_size|num_processes",
    re.I,
)


class LoaderWithoutSampler(Rule):
    """Several processes train one model, and each goes through all of the data.

    ## What it does
    Reports a `DataLoader` without a sampler whose batches train a model in the function that wraps the model in
    `DistributedDataParallel`, in a file in which nothing shares the data out.

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
    makes its data at random. Held back as tentative: tests, and data that are handed in and not shuffled, which may
    share themselves out.

    Not proved by running: it takes several processes.

    ## References
    - [torch.utils.data.distributed.DistributedSampler](https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler)
    """

    group = "distributed"
    fixable = "never"

    def check(self) -> None:
        wrapped = {self.flow.function(call): call for call in wrappings(self.flow)}
        if not wrapped or any(_SHARES.search(name.value) for name in self.source.nodes_of(cst.Name)):
            return  # dataset = rows[dist.get_rank() :: dist.get_world_size()]
        loaders = self.flow.calls("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
        for loader in loaders:
            function = self.flow.function(loader)
            if function not in wrapped or not self._takes_all(loader) or not self._trains(loader):
                continue
            self.report(
                loader,
                f"each process goes through all of `{short(self.code(loader.args[0].value))}`: nothing shares it out",
                notes=[self.note(wrapped[function], "one model is trained by several processes")],
                tentative=not self._is_whole(loader) or is_test_file(self.source.path),
            )

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
        if takes_more(loader) or not loader.args or NOT_TRAINED_ON.search(bound_name(self.flow, loader)):
            return False
        return is_none(argument(loader, 3, "sampler")) and is_none(argument(loader, 4, "batch_sampler"))

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
