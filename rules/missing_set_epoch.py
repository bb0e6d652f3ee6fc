from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.finding import Fix
from devlint.flow.names import called_name, dotted, names_in, target_names
from devlint.rule import Rule
from devlint.rules._distributed import NOT_TRAINED_ON, argument, bound_name, takes_more
from devlint.rules._moves import short
from devlint.rules._only_distributed import samplers_for_several, uses
from devlint.rules._switches import tests_apart

#: Libraries that tell samplers the epoch by themselves.
_CALLED = re.compile(r"^[^#\n]*set_epoch", re.MULTILINE)
_TOLD_BY_OTHERS = re.compile(r"\b(accelerate|lightning|pytorch_lightning|ignite|composer|deepspeed|transformers)\b")


class MissingSetEpoch(Rule):
    """A sampler that shuffles for several processes is never told the epoch, and gives the same order in each.

    ## What it does
    Reports a `DistributedSampler` that shuffles for a loader, in a file that trains for several epochs and never calls
    `set_epoch`: at the loop over that loader, or over epochs, before which the call is missing. As tentative,
    `sampler.set_epoch(epoch)` that nothing asks about, of a sampler that is `None` unless there are several processes.

    ## Why is this bad
    The sampler shuffles with its seed and its epoch, so that all processes agree on the order. Until it is told another
    epoch, that order is the same one in each: batches are made of the same samples again and again, and each process
    sees the same part of the data for ever.

    ## Example
    ```python
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler


    def train(model, dataset, optimizer, epochs):
        loader = DataLoader(dataset, batch_size=64, sampler=DistributedSampler(dataset))
        for epoch in range(epochs):
            for x, y in loader:
                optimizer.zero_grad()
                model(x, y).backward()
                optimizer.step()
    ```

    ## Use instead
    ```python
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler


    def train(model, dataset, optimizer, epochs):
        loader = DataLoader(dataset, batch_size=64, sampler=DistributedSampler(dataset))
        for epoch in range(epochs):
            loader.sampler.set_epoch(epoch)
            for x, y in loader:
                optimizer.zero_grad()
                model(x, y).backward()
                optimizer.step()
    ```

    ## Fix safety
    The fix tells the sampler the epoch right before the loop over its loader, and asks first whether it is one of these
    where it may be another. It is unsafe: the order of the data is another one from the second epoch on. It is offered
    where both loops are in the function that makes the loader.

    ## Limits
    Silent for `shuffle=False`, for data whose name says that it is not trained on, where the file does not loop over
    epochs and go backward itself, and where a library such as Lightning or accelerate sees to it. Held back as
    tentative: tests, and loaders that are made in another function than the loop over epochs.

    ## References
    - [torch.utils.data.distributed.DistributedSampler](https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler)
    """

    group = "distributed"
    fixable = "sometimes"

    def check(self) -> None:
        text = self.source.text
        if "DistributedSampler" in text and ".set_epoch(" in text and not self.in_tests:
            self._told_none()
        # a comment that names it calls nothing
        if "DistributedSampler" not in text or _CALLED.search(text) or "backward" not in text:
            return
        if any(_TOLD_BY_OTHERS.search(name) for name in self.flow.scope.imports.values()):
            return  # accelerator.prepare(loader)
        epochs = [loop for loop in self.source.nodes_of(cst.For) if self._counts_epochs(loop)]
        if not epochs:
            return
        told: set[cst.CSTNode] = set()
        loaders = self.flow.calls("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
        for call in self.flow.calls(
            "torch.utils.data.distributed.DistributedSampler", "torch.utils.data.DistributedSampler"
        ):
            if not self._shuffles(call):
                continue
            loader = next((each for each in loaders if self._is_for(call, each)), None)
            if loader is None:
                continue
            here = [loop for loop in epochs if self.flow.function(loop) is self.flow.function(loader)]
            if self._is_not_trained_on(call, loader, makes_only=not here):
                continue
            rounds = self._rounds(bound_name(self.flow, loader), here)
            place = rounds.iter if rounds is not None else here[0].iter if here else call
            if place not in told:  # a loop takes one loader, whichever of them
                told.add(place)
                fix = self._fix(call, loader, here[0], rounds) if here and rounds is not None else None
                self._report(place, call, (here or epochs)[0], fix, sure=bool(here))

    def _told_none(self) -> None:
        """``sampler = DistributedSampler(rows) if args.distributed else None``, and ``sampler.set_epoch(epoch)``."""
        for bound in samplers_for_several(self):
            for use in uses(self, bound, "set_epoch"):
                note = self.note(bound.test, "only where that holds is there one")
                said = f"`{bound.name}` is `None` in a single process, and is told the epoch here in any case"
                self.report(use, said, notes=[note], tentative=True)

    def _counts_epochs(self, loop: cst.For) -> bool:
        names: set[str] = set()
        target_names(loop.target, names)
        return any("epoch" in name.lower() for name in names) or any(
            "epoch" in name.lower() for name in names_in(loop.iter)
        )

    def _shuffles(self, sampler: cst.Call) -> bool:
        if takes_more(sampler):
            return False
        shuffle, seed = argument(sampler, 3, "shuffle"), argument(sampler, 4, "seed")
        # DistributedSampler(dataset, seed=epoch)
        plain_seed = seed is None or not any("epoch" in name for name in names_in(seed))
        return plain_seed and (shuffle is None or (isinstance(shuffle, cst.Name) and shuffle.value == "True"))

    def _is_for(self, sampler: cst.Call, loader: cst.Call) -> bool:
        given = argument(loader, 3, "sampler")
        if given is None or self.flow.function(loader) is not self.flow.function(sampler):
            return False
        name = bound_name(self.flow, sampler)
        return any(node is sampler for node in tree.walk(given)) or (bool(name) and dotted(given) == name)

    def _is_not_trained_on(self, sampler: cst.Call, loader: cst.Call, *, makes_only: bool) -> bool:
        data = [argument(sampler, 0, "dataset"), argument(loader, 0, "dataset")]
        names = [bound_name(self.flow, sampler), bound_name(self.flow, loader), *(dotted(node) for node in data)]
        function = self.flow.function(loader)
        if makes_only and function is not None:
            names.append(function.name)  # def make_test_loader(dataset):
        return any(NOT_TRAINED_ON.search(name) for name in names)

    def _report(self, place: cst.CSTNode, sampler: cst.Call, loop: cst.For, fix: Fix | None, *, sure: bool) -> None:
        notes = [(sampler, "this shuffles the data"), (loop.iter, "this loops over epochs")]
        self.report(
            place,
            f"`{short(self.code(sampler))}` gives the same order in every epoch: nothing calls its `set_epoch`",
            notes=[self.note(node, text) for node, text in notes if node is not place],
            fix=fix,
            # def make_loader(dataset): ...   its callers in other files may tell the sampler
            tentative=not sure or self.in_tests,
        )

    def _rounds(self, name: str, here: list[cst.For]) -> cst.For | None:
        """The loop over the loader of which an epoch is known: before that the call is missing."""
        for loop in here:
            for inner in tree.walk(loop.body):
                if isinstance(inner, cst.For) and name and name in {dotted(n) for n in _iterated(inner.iter)}:
                    return inner
        if here:
            return None
        # def run_epoch(self, epoch): for x, y in self.loader: ...
        return next((each for each in self.source.nodes_of(cst.For) if self._trains(each)), None)

    def _trains(self, loop: cst.For) -> bool:
        """Whether a loop over batches goes backward, itself or in what it calls, where the epoch is handed in."""
        function = self.flow.function(loop)
        if function is None or not any(_EPOCH.match(param.name.value) for param in function.params):
            return False
        if not any(_LOADERS.search(dotted(each)) for each in _iterated(loop.iter)):
            return False
        if tree.named(loop.body, "backward"):
            return True
        called = {called_name(call) for call in tree.walk(loop.body) if isinstance(call, cst.Call)}
        functions = self.flow.scope.functions.values()
        return any(f.name in called and tree.named(f.node.body, "backward") for f in functions)

    def _fix(self, sampler: cst.Call, loader: cst.Call, loop: cst.For, inner: cst.For) -> Fix | None:
        if not isinstance(loop.target, cst.Name):
            return None
        held = f"{bound_name(self.flow, loader)}.sampler"
        lines = [f"{held}.set_epoch({loop.target.value})"]
        if self._may_be_another(sampler, loader, loop):
            lines = [f"if isinstance({held}, {self.code(sampler.func)}):", f"    {lines[0]}"]
        line = self.insert_statement(inner, *lines)
        return self.fix("tell the sampler the epoch", line, safe=False) if line is not None else None

    def _may_be_another(self, sampler: cst.Call, loader: cst.Call, loop: cst.For) -> bool:
        """``if rank == -1: sampler = RandomSampler(rows)   else: sampler = DistributedSampler(rows)``, or two loaders,
        of which one has such a sampler: others are told no epoch."""
        if isinstance(self.enclosing(sampler, cst.IfExp, cst.BaseSmallStatement), cst.IfExp):
            return True
        name, function = bound_name(self.flow, sampler), self.flow.function(sampler)
        return bool(tests_apart(self, sampler, loader) or tests_apart(self, loader, loop)) or any(
            bool(name) and assign.value is not sampler and self.flow.function(assign) is function
            for assign in self.source.nodes_of(cst.Assign)
            if any(dotted(target.target) == name for target in assign.targets)
        )


def _iterated(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """``loader`` of ``enumerate(tqdm(loader))``."""
    found = [node]
    while isinstance(node, cst.Call) and node.args:
        node = node.args[0].value
        found.append(node)
    return found


#: What a function is told that runs one epoch.
_EPOCH = re.compile(r"(cur(rent)?_|i_?)?epoch(_?(i|idx|index|id|no|num|number))?$")
#: What a loop over batches goes through.
_LOADERS = re.compile(r"load|data|batch|_dl$|_iter", re.I)
