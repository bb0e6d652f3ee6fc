from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from devlint.finding import Fix
from devlint.rule import Rule
from devlint.rules._moves import short
from devlint.rules._portability import Surroundings, asks_whether_available, told_to_device

#: Names by which a file shows that it knows of other kinds of devices, and texts that name one.
_OTHER_KINDS = re.compile(r"(?<![a-z])(mps|xpu|npu|hpu|mlu|musa|xla|tpu|accelerator)(?![a-z])", re.IGNORECASE)
_OTHER_KIND = re.compile(r"(mps|xpu|npu|hpu|mlu|musa|xla|tpu)(:\d+)?")
#: It needs CUDA all the same.
_CUDA_ALL_THE_SAME = re.compile(
    r"torch\.cuda\.(?!is_available|manual_seed|empty_cache)\w|nccl|triton|bitsandbytes|load_in_[48]bit|onnx|"
    r"flash_attn|xformers|vllm|tensorrt|set_default_tensor_type|autocast|GradScaler"
)


class CudaOrCpuOnly(Rule):
    """A device is chosen between CUDA and the CPU, and there are other accelerators.

    ## What it does
    Reports `"cuda" if torch.cuda.is_available() else "cpu"` in files that need nothing else of CUDA, also of
    `torch.device`s and in statements: `if torch.cuda.is_available(): device = "cuda"`. As tentative, `x.cuda()` under
    that test, where the file has no other.

    ## Why is this bad
    On a Mac, and on machines with Intel's accelerators, the work runs on the CPU without a word, though it would run
    on the accelerator as it is: `torch.accelerator` gives whichever there is.

    ## Example
    ```python
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Linear(3, 2).to(device)
    ```

    ## Use instead
    ```python
    import torch

    device = torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"
    model = torch.nn.Linear(3, 2).to(device)
    ```

    ## Fix safety
    The fix asks `torch.accelerator`, which torch 2.6 brought. With CUDA it gives what the code gave. It is unsafe: on
    other machines the work moves to their accelerator, which may lack an operation or a dtype. Statements, `"cuda:0"`
    and devices have no fix.

    ## Limits
    Silent in files that name another kind of accelerator, that use CUDA otherwise (`torch.cuda.Stream`, `.cuda()`
    without a test, `nccl`, autocast), and in tests. Whether each operation exists on the other kinds is not looked at.

    ## References
    - [torch.accelerator](https://pytorch.org/docs/stable/accelerator.html)
    """

    group = "portability"
    fixable = "sometimes"

    def check(self) -> None:
        text = self.source.text
        if "cuda.is_available" not in text or _CUDA_ALL_THE_SAME.search(text) or self._knows_other_kinds():
            return
        around = Surroundings(self)
        demanded = around.is_test or around.demands_cuda
        moves = self._moves(around)
        if demanded or moves is None:
            return
        for node in self.source.nodes_of(cst.IfExp):
            if not asks_whether_available(self, node.test):
                continue
            if self._kind(node.body) == "cuda" and self._kind(node.orelse) == "cpu":
                message = f"`{short(self.code(node))}` leaves out every accelerator but CUDA"
                self.report(node, message, fix=self._fix(node))
        for branch in self.source.nodes_of(cst.If):
            if asks_whether_available(self, branch.test) and self._chooses(branch):
                self.report(branch.body.body[0], "this leaves out every accelerator but CUDA")
        for test, call in moves.items():
            above = self.parent(test)
            if above is None or around.guard(above) is not None:
                continue  # if dist.is_initialized(): ... flag = flag.cuda()
            self.report(call, f"`{short(self.code(call))}` leaves out every accelerator but CUDA", tentative=True)

    def _moves(self, around: Surroundings) -> dict[cst.CSTNode, cst.Call] | None:
        """The first ``x.cuda()`` under each ``if torch.cuda.is_available():``; ``None`` where there is another, which
        needs CUDA all the same."""
        found: dict[cst.CSTNode, cst.Call] = {}
        for call in self.source.nodes_of(cst.Call):
            if isinstance(call.func, cst.Attribute) and call.func.attr.value == "cuda":
                test = around.guard(call)
                if test is None or not asks_whether_available(self, test):
                    return None
                found.setdefault(test, call)
        return found

    def _chooses(self, branch: cst.If) -> bool:
        """``if torch.cuda.is_available(): device = "cuda"``, with ``"cpu"`` for the same name otherwise."""
        chosen, other = _assigned(branch.body.body), None
        if isinstance(branch.orelse, cst.Else):
            other = _assigned(branch.orelse.body.body)
        elif branch.orelse is None and isinstance(block := self.parent(branch), cst.IndentedBlock | cst.Module):
            before = block.body[: list(block.body).index(branch)]
            other = _assigned(before[-1:])  # device = "cpu"
        if chosen is None or other is None or self.code(chosen.targets[0]) != self.code(other.targets[0]):
            return False
        return self._kind(chosen.value) == "cuda" and self._kind(other.value) == "cpu"

    def _kind(self, node: cst.BaseExpression) -> str:
        """``cuda`` for ``"cuda"``, ``"cuda:0"`` and ``torch.device("cuda")``."""
        text = _text(told_to_device(self, node))
        return "cuda" if text == "cuda:0" else text

    def _knows_other_kinds(self) -> bool:
        if not _OTHER_KINDS.search(self.source.text):
            return False
        return any(_OTHER_KINDS.search(name.value) for name in self.source.nodes_of(cst.Name)) or any(
            _OTHER_KIND.fullmatch(_text(text)) for text in self.source.nodes_of(cst.SimpleString)
        )

    def _fix(self, node: cst.IfExp) -> Fix | None:
        if _text(node.body) != "cuda" or self.code(node.test).partition(".")[0] != "torch":
            return None
        kind = self.replace(node.body, "torch.accelerator.current_accelerator().type", outer=True)
        test = self.replace(node.test, "torch.accelerator.is_available()", outer=True)
        return self.fix("ask `torch.accelerator`", kind, test, safe=False)


def _assigned(lines: Sequence[cst.CSTNode]) -> cst.Assign | None:
    """The one assignment that a block of one line is."""
    if len(lines) != 1 or not isinstance(lines[0], cst.SimpleStatementLine) or len(lines[0].body) != 1:
        return None
    small = lines[0].body[0]
    return small if isinstance(small, cst.Assign) and len(small.targets) == 1 else None


def _text(node: cst.CSTNode) -> str:
    return str(node.evaluated_value) if isinstance(node, cst.SimpleString) else ""
