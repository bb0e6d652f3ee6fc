from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from devlint.flow.names import dotted
from devlint.rule import Rule
from devlint.rules._environment import settings_of
from devlint.rules._set_late import is_for_others, surely_before


class MpsFallbackSetLate(Rule):
    """`PYTORCH_ENABLE_MPS_FALLBACK` is set after torch has read it.

    ## What it does
    Reports that `PYTORCH_ENABLE_MPS_FALLBACK` is set in `os.environ` after torch was imported, there or by a package
    that is made for torch: `import torch` above it, or at the head of a file with a function that sets it.

    ## Why is this bad
    torch reads the variable once, when its library is loaded, and registers then what happens to operators that Apple's
    GPU has no kernel for. What is set after `import torch` changes nothing: they raise `NotImplementedError`, and the
    message advises to set the variable that the program has set.

    ## Example
    ```python
    import os

    import torch

    if torch.backends.mps.is_available():
        os.environ["PYTORCH_ENABLE_MPS_FALLBACK"] = "1"
    ```

    ## Use instead
    ```python
    import os

    os.environ.setdefault("PYTORCH_ENABLE_MPS_FALLBACK", "1")

    import torch
    ```

    ## Fix safety
    No fix is offered. Set the variable before the first import of torch in the whole program, or outside of it; it does
    no harm where there is no such GPU.

    ## Limits
    Silent where the function or the class starts other processes that get the variable, or the program anew, and where
    it is set to `"0"`. What other files import before is not seen.

    New: of 5 findings in 1,900 repositories that were known to other rules, 5 come too late, one of them in a test.

    Not proved by running: only builds of torch for macOS read the variable.

    ## References
    - [MPS environment variables](https://pytorch.org/docs/stable/mps_environment_variables.html)
    - [MPSFallback.mm](https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/mps/MPSFallback.mm), where the
      variable is read as the operators are registered
    """

    group = "nursery"

    def check(self) -> None:
        if _VARIABLE not in self.source.text:
            return
        for node, _, value in settings_of(self, {_VARIABLE}):
            first = next((each for each in self._imports() if surely_before(self, each, node)), None)
            if value != "0" and first is not None and not is_for_others(self, node):
                self.report(
                    node,
                    f"`{_VARIABLE}` is set too late: torch has read it when it was imported",
                    notes=[self.note(first, "this imports torch")],
                )

    def _imports(self) -> Iterator[cst.CSTNode]:
        for plain in self.source.nodes_of(cst.Import):
            if any(dotted(alias.name).partition(".")[0] in _IMPORT_TORCH for alias in plain.names):
                yield plain
        for imported in self.source.nodes_of(cst.ImportFrom):
            top = dotted(imported.module).partition(".")[0] if imported.module is not None else ""
            if not imported.relative and top in _IMPORT_TORCH:
                yield imported


_VARIABLE = "PYTORCH_ENABLE_MPS_FALLBACK"
#: Packages that import torch as soon as they are imported themselves; `transformers` waits until it is used.
_IMPORT_TORCH = frozenset({"torch", "torchaudio", "torchmetrics", "torchvision", "pytorch_lightning", "timm", "kornia"})
