from __future__ import annotations

import re

import libcst as cst

from devlint.rule import Rule
from devlint.rules._distributed import argument, takes_more, wrappings
from devlint.rules._local_rank import report_option

#: Whatever gives a process a device of its own.
_CHOICE = re.compile(
    r"set_device|device_id|device_index|local_rank|LOCAL_RANK|cuda:|VISIBLE_DEVICES|current_device|device_mesh|"
    r"device_count|\.cuda\((?!non_blocking)\w|\.to\(\s*(self\.)?(args\.)?\w*(rank|gpu)|get_device\(|get_rank\(\)\)|"
    r"torch\.device\(\s*[\"']cuda[\"']\s*,|cuda\.device\("
)

#: os.environ["WORLD_SIZE"] = "1", os.environ.setdefault("WORLD_SIZE", "1"); and not what `get` falls back to
_ONE_PROCESS = re.compile(r"""(?<!get\()(?<!getenv\()["']WORLD_SIZE["'](\]\s*=|\s*[,:])\s*["']1["']""")


class RankDeviceNotSet(Rule):
    """Each of several processes works on the current device, and nothing makes that another one in each.

    ## What it does
    Reports `init_process_group("nccl")` in a file that moves models or tensors to `"cuda"` without an index, and in
    which nothing gives a process a device of its own: no `set_device`, no `device_id`, no index. As tentative, a device
    that is numbered by an option `--local_rank` alone (`torch.cuda.set_device(args.local_rank)`).

    ## Why is this bad
    `"cuda"` is the current device, which is `cuda:0` in every process. All processes of a node then share one device,
    and the others stay idle; NCCL refuses to communicate between two processes on the same device.

    ## Example
    ```python
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel


    def build():
        dist.init_process_group("nccl")
        return DistributedDataParallel(nn.Linear(8, 8).cuda())
    ```

    ## Use instead
    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel


    def build():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        return DistributedDataParallel(nn.Linear(8, 8).cuda())
    ```

    ## Limits
    Silent where anything in the file has to do with an index of a device, whether or not it is used, and where the file
    says that there is one process (`world_size=1`, `os.environ["WORLD_SIZE"] = "1"`). A launcher that gives each
    process one visible device makes it right. Held back as tentative: tests, and files that wrap no model in
    `DistributedDataParallel`.

    Not proved by running: it takes several processes on several devices.

    ## References
    - [torch.distributed.init_process_group](https://pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group)
    """

    group = "distributed"
    fixable = "never"

    def check(self) -> None:
        if not self.in_tests:
            report_option(self)
        text = self.source.text
        if "init_process_group" not in text or "nccl" not in text or _CHOICE.search(text):
            return
        if _ONE_PROCESS.search(text):
            return
        moves = [move for move in self.flow.facts.moves.values() if move.target.name == "cuda"]
        if not moves:
            return
        for call in self.flow.calls(
            "torch.distributed.init_process_group", "torch.distributed.distributed_c10d.init_process_group"
        ):
            backend = argument(call, 0, "backend")
            if takes_more(call) or not isinstance(backend, cst.SimpleString) or backend.evaluated_value != "nccl":
                continue
            if self._is_alone(call):
                continue
            self.report(
                call,
                "every process works on `cuda:0`: nothing gives it a device of its own",
                notes=[self.note(moves[0].node, "`cuda` is the current device, the first one in each process")],
                # a group may be made to please a library, in one process
                tentative=not wrappings(self.flow) or self.in_tests,
            )

    def _is_alone(self, call: cst.Call) -> bool:
        # init_process_group("nccl", rank=0, world_size=1)
        size = argument(call, None, "world_size")
        return isinstance(size, cst.Integer) and size.evaluated_value == 1
