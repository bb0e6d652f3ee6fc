from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.flow.names import dotted
from devlint.flow.scope import Function
from devlint.rule import Rule
from devlint.rules._moves import short
from devlint.rules._numbered import devices_numbered
from devlint.rules._rank_beside_local import rank_beside_local

_RANKS = frozenset(
    "torch.distributed.get_rank torch.distributed.distributed_c10d.get_rank horovod.torch.rank "
    "ignite.distributed.get_rank ignite.distributed.utils.get_rank detectron2.utils.comm.get_rank "
    "mmengine.dist.get_rank fvcore.common.dist.get_rank deepspeed.comm.get_rank".split()
)
_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
#: Attributes that hold the rank among all processes, and those beside them that hold the one on the node.
_NAMED = {"process_index": "local_process_index", "global_rank": "local_rank"}
#: Names that say that the rank is the one on this node.
_SAYS_LOCAL = re.compile(r"(^|[._])local_?rank$", re.I)
#: Said in a program that stays on one machine.
_ONE_MACHINE = re.compile(r"localhost|127\.0\.0\.1|\bmp\.spawn\b|multiprocessing\.spawn|start_processes")
#: What is not said, but left to the environment: `os.getenv("MASTER_ADDR", "localhost")`.
_BY_DEFAULT = re.compile(r"""(getenv|environ\.get)\(\s*["']MASTER_ADDR["'],\s*["'](localhost|127\.0\.0\.1)["']""")


class GlobalRankAsDevice(Rule):
    """The rank among all processes of all nodes numbers a device of this node.

    ## What it does
    Reports `cuda:{rank}`, `torch.device("cuda", rank)`, `set_device(rank)`, `.cuda(rank)`, `.to(rank)` and
    `device_ids=[rank]`, in whatever way they are written, where `rank` is `torch.distributed.get_rank()`, the
    environment's `RANK`, or an attribute `process_index` or `global_rank` beside which there is one for the node
    (`local_process_index`, `local_rank`), or a parameter `rank` of a function that takes a `local_rank`, too. Where the
    rank among all is given to a name such as `local_rank`, that line is reported. As tentative, a `rank` or
    `self._rank` that was handed in, where the function or class speaks of a local rank or of the processes of a node.

    ## Why is this bad
    Ranks are counted over all nodes, devices on each node from zero. With two nodes of eight devices, the second has
    the ranks 8 to 15 and still the devices 0 to 7: the program ends with `invalid device ordinal`.

    ## Example
    ```python
    import os

    import torch


    def choose_device():
        rank = int(os.environ["RANK"])
        return torch.device(f"cuda:{rank}")
    ```

    ## Use instead
    ```python
    import os

    import torch


    def choose_device():
        local_rank = int(os.environ["LOCAL_RANK"])
        return torch.device(f"cuda:{local_rank}")
    ```

    ## Limits
    In the nursery: none of six findings in repositories that nobody had tuned for was worth a change. Such programs are
    started on one machine, and say so in their first lines, or nowhere. Silent where the rank is taken modulo the
    number of devices, where the program says that it stays on one machine (`localhost`, `mp.spawn`), in tests, and
    where a rank is handed in and no local one beside it.

    Not proved by running: it needs a second node.

    ## References
    - [torchrun: environment variables](https://pytorch.org/docs/stable/elastic/run.html#environment-variables)
    """

    group = "nursery"
    fixable = "never"

    def check(self) -> None:
        text = self.source.text
        if not any(word in text for word in ("get_rank", ".rank()", "local_rank", "local_world_size", *_VARIABLES)):
            return
        if _ONE_MACHINE.search(_BY_DEFAULT.sub("", text)):
            return
        if self.in_tests:
            return  # tests/test_parallel.py is run on one machine
        ranks = self._ranks()
        misnamed = self._misnamed()
        for node, rank in devices_numbered(self):
            function, name = self.flow.function(node), dotted(rank)
            if _SAYS_LOCAL.search(name):
                key = self._owner(name, function), name
                # device = torch.device("cuda", cfg.local_rank); ...; cfg.local_rank = dist.get_rank()   to be logged
                if key not in misnamed or self._is_of_another(misnamed[key], name, node):
                    continue
                wrong = misnamed.pop(key)
                if not (function is not None and self._narrowed(function, name)):
                    self.report(
                        wrong,
                        f"`{name}` gets the rank among the processes of all nodes, and numbers a device of this one",
                        notes=[self.note(node, "devices are counted on each node by itself")],
                    )
                continue
            found = self._global_rank(rank, ranks, function)
            if found is not None:
                what = short(self.code(rank))
                self.report(
                    node,
                    f"`{what}` counts the processes of all nodes, and devices are counted on each node by itself",
                    notes=[self.note(found, "this is the rank among all; `LOCAL_RANK` is that on a node")],
                )
            elif (local := rank_beside_local(self, rank, function)) is not None:
                self.report(
                    node,
                    f"`{name}` is not the rank on this node, which is known here, too, and numbers a device",
                    notes=[self.note(local, "this counts the processes of a node")],
                    tentative=True,
                )

    def _owner(self, name: str, function: Function | None) -> Function | None:
        """The function whose name it is; ``args.local_rank`` and ``self.local_rank`` are those of the file."""
        return None if "." in name else function

    def _is_of_another(self, bound: cst.CSTNode, name: str, node: cst.CSTNode) -> bool:
        """Whether what numbers a device is not what was bound: it stands above, or its function binds its own."""
        function = self.flow.function(node)
        if self.flow.function(bound) is function:
            return function is not None and self.source.comes_before(node, bound)
        return any(
            self.flow.function(assign) is function and any(dotted(each.target) == name for each in assign.targets)
            for assign in self.source.nodes_of(cst.Assign)
        )

    def _misnamed(self) -> dict[tuple[Function | None, str], cst.BaseExpression]:
        """Names such as ``local_rank`` that get the global rank, by function."""
        found: dict[tuple[Function | None, str], cst.BaseExpression] = {}
        for assign in self.source.nodes_of(cst.Assign):
            for each in assign.targets:
                name = dotted(each.target)
                if _SAYS_LOCAL.search(name) and self._source(assign.value) is not None:
                    found.setdefault((self._owner(name, self.flow.function(assign)), name), assign.value)
        return found

    def _ranks(self) -> dict[tuple[Function | None, str], cst.Call | cst.Subscript | None]:
        """Names bound to the global rank and nothing else, by function; those bound to others, too, with ``None``."""
        found: dict[tuple[Function | None, str], cst.Call | cst.Subscript | None] = {}
        for assign in self.source.nodes_of(cst.Assign):
            pairs: list[tuple[cst.BaseExpression, cst.BaseExpression]] = []
            for each in assign.targets:
                pairs.append((each.target, assign.value))
                if isinstance(each.target, cst.Tuple) and isinstance(assign.value, cst.Tuple):
                    both = zip(each.target.elements, assign.value.elements, strict=False)
                    pairs += [(target.value, value.value) for target, value in both]
            for target, value in pairs:
                name = dotted(target)
                # gpu = int(os.environ["RANK"]) if ddp else 0: the other branch is no process of many
                if name and not isinstance(value, cst.Integer | cst.UnaryOperation):
                    key = (None if name.startswith("self.") else self.flow.function(assign), name)
                    source = self._source(value)
                    found[key] = source if key not in found or found[key] is source else None
        return found

    def _source(self, node: cst.BaseExpression) -> cst.Call | cst.Subscript | None:
        """`dist.get_rank()`, `int(os.environ["RANK"])`, `os.getenv("RANK", 0)`."""
        if isinstance(node, cst.Call) and dotted(node.func) == "int" and len(node.args) == 1:
            return self._source(node.args[0].value)
        if isinstance(node, cst.IfExp):  # dist.get_rank() if dist.is_initialized() else 0
            ways = [each for each in (node.body, node.orelse) if not isinstance(each, cst.Integer | cst.UnaryOperation)]
            return self._source(ways[0]) if len(ways) == 1 else None
        if isinstance(node, cst.Call):
            name = self.flow.name_of(node) or self.flow.scope.qualified(node.func)
            if name in _RANKS:
                return None if node.args else node  # get_rank(group) counts the processes of a group
            if name in ("os.getenv", "os.environ.get") and node.args and _is_rank(node.args[0].value):
                others = [self.code(arg.value) for arg in node.args[1:]]
                return None if any("LOCAL" in code for code in others) else node
        if isinstance(node, cst.Subscript) and self.flow.scope.qualified(node.value) == "os.environ":
            index = node.slice[0].slice
            return node if isinstance(index, cst.Index) and _is_rank(index.value) else None
        return None

    def _global_rank(
        self,
        rank: cst.BaseExpression,
        ranks: dict[tuple[Function | None, str], cst.Call | cst.Subscript | None],
        function: Function | None,
    ) -> cst.CSTNode | None:
        name = dotted(rank)
        local = _NAMED.get(name.rpartition(".")[2], "") if "." in name else ""
        if local and local in self.source.text:
            return rank  # state.process_index, where there is a state.local_process_index
        if not name:
            return self._source(rank)  # torch.cuda.set_device(dist.get_rank())
        around = function
        while around is not None:
            if (around, name) in ranks:
                return None if self._narrowed(around, name) else ranks[around, name]
            if name in around.param_names:
                # def work(rank, local_rank): ...
                both = name in ("rank", "global_rank") and any(_SAYS_LOCAL.search(each) for each in around.param_names)
                return around.param(name) if both and not self._narrowed(around, name) else None
            around = around.outer
        return ranks.get((None, name))

    def _narrowed(self, function: Function, name: str) -> bool:
        # rank %= torch.cuda.device_count()
        return any(isinstance(n, cst.AugAssign) and dotted(n.target) == name for n in tree.walk(function.node.body))


def _is_rank(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.SimpleString) and node.evaluated_value in _VARIABLES
