from __future__ import annotations

import libcst as cst

from devlint import tree
from devlint.flow.names import dotted
from devlint.rule import Rule
from devlint.rules._environment import settings_of
from devlint.rules._moves import short
from devlint.rules._set_late import cuda_uses, is_for_others, surely_before


class VisibleDevicesSetLate(Rule):
    """`CUDA_VISIBLE_DEVICES` is set after CUDA has read it.

    ## What it does
    Reports that `CUDA_VISIBLE_DEVICES`, `HIP_VISIBLE_DEVICES` or `CUDA_DEVICE_ORDER` is set in `os.environ` after
    CUDA was asked or used: `torch.cuda.is_available()`, `torch.cuda.get_device_name()`, `model.cuda()`.

    ## Why is this bad
    CUDA reads these variables once, when it is first used. `torch.cuda.is_available()` is a use: it asks the driver how
    many devices there are. What is set afterwards changes nothing in this process, without a word: the script runs on
    the devices that it was started with, often on the first one, which somebody else is using.

    ## Example
    ```python
    import os

    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    os.environ["CUDA_VISIBLE_DEVICES"] = "2"
    ```

    ## Use instead
    ```python
    import os

    os.environ["CUDA_VISIBLE_DEVICES"] = "2"

    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    ```

    ## Fix safety
    No fix is offered. Set the variable before anything asks CUDA, best before `import torch` or outside of the program,
    or choose with `torch.device("cuda:2")`.

    ## Limits
    Importing torch does not start CUDA, and neither do `torch.cuda.manual_seed()` and, where it can ask the
    driver's management library, `torch.cuda.device_count()`: these are not counted. Silent where other processes
    are started that get the variable, in the function or the class, where it is put back or gets a default after
    `torch.cuda.set_device()`, and where `PYTORCH_NVML_BASED_CUDA_CHECK` changes what `is_available()` does. What
    other files do before is not seen.

    Not proved by running: the driver reads the variable, and imaginary devices have none.

    In the nursery: of 10 findings in repositories that nobody had tuned for, 6 were worth a change; in others that were
    known, 5 of 9.

    ## References
    - [CUDA environment variables](https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-environment-variables)
    - [PYTORCH_NVML_BASED_CUDA_CHECK](https://pytorch.org/docs/stable/cuda_environment_variables.html)
    """

    group = "nursery"

    def check(self) -> None:
        text = self.source.text
        if "_VISIBLE_DEVICES" not in text and "CUDA_DEVICE_ORDER" not in text:
            return
        if "PYTORCH_NVML_BASED_CUDA_CHECK" in text:
            return
        uses = None
        for node, name, _ in settings_of(self, _VARIABLES):
            uses = cuda_uses(self) if uses is None else uses
            first = next((use for use in uses if surely_before(self, use, node)), None)
            if first is None or is_for_others(self, node) or self._is_chosen_already(first, node):
                continue
            if isinstance(self.enclosing(first, cst.Parameters, cst.FunctionDef), cst.Parameters):
                # def profile(model, device="cuda" if torch.cuda.is_available() else "cpu"):
                self.report(
                    first,
                    f"this default is worked out when the file is imported: `{name}`, set later, comes too late",
                    notes=[self.note(node, "it is set here")],
                )
                return
            self.report(
                node,
                f"`{name}` is set too late: CUDA has read it before",
                notes=[self.note(first, f"`{short(self.code(first))}` uses CUDA here")],
            )

    def _is_default(self, node: cst.CSTNode) -> bool:
        """``if not os.environ.get("CUDA_VISIBLE_DEVICES"): os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"``"""
        above = self.parent(node)
        while above is not None and not isinstance(above, cst.FunctionDef):
            if isinstance(above, cst.If) and any(name in self._meant(above.test) for name in _VARIABLES):
                return True
            above = self.parent(above)
        return False

    def _meant(self, test: cst.BaseExpression) -> str:
        """The code of a test, with that of what the names in it were set to."""
        names = {part.value for part in tree.walk(test) if isinstance(part, cst.Name)}
        made = [a.value for a in self.source.nodes_of(cst.Assign) if dotted(a.targets[0].target) in names]
        return " ".join(self.code(each) for each in (test, *made))

    def _is_chosen_already(self, use: cst.CSTNode, node: cst.CSTNode) -> bool:
        """``torch.cuda.set_device(rank); os.environ["CUDA_VISIBLE_DEVICES"] = gpus[rank]``: this process has its
        device, and the variable is for those that it starts."""
        if not isinstance(use, cst.Call) or self.flow.name_of(use) != "torch.cuda.set_device":
            return False
        if self._is_default(node):
            return True  # nothing is chosen anew: those who read the variable find one
        value = node.value if isinstance(node, cst.Assign) else node
        chosen, handed = (
            {n.value for n in tree.walk(each) if isinstance(n, cst.Name)} for each in (use.args[0], value)
        )
        return bool(chosen & handed)


_VARIABLES = frozenset({"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"})
