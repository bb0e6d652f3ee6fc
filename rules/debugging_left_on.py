from __future__ import annotations

import re

import libcst as cst

from devlint import tree
from devlint.finding import Fix
from devlint.flow.hypothesis import names_device
from devlint.flow.names import called_name, dotted, last_word
from devlint.flow.steps import above
from devlint.rule import Rule
from devlint.rules._arguments import argument
from devlint.rules._copied import is_copied
from devlint.rules._environment import settings_of
from devlint.rules._switches import tests_above
from devlint.rules._training import is_inside
from devlint.testcode import near

#: Variables that make the host wait for the device.
_VARIABLES = frozenset({"CUDA_LAUNCH_BLOCKING", "HIP_LAUNCH_BLOCKING"})
_LAUNCHES = "the host waits for every kernel"
_ANOMALIES = "the host waits for a check of every gradient"
#: What a program asks for that wants the same results each time.
_REPEATABLE = re.compile(r"use_deterministic_algorithms|CUBLAS_WORKSPACE_CONFIG")
_LIGHTNING = frozenset({"lightning", "pytorch_lightning"})
#: Words of code that asks a model, without autograd, and the calls of code that trains one, or has it done.
_ASKING = re.compile(r"\bno_grad\b|\binference_mode\b")
_TRAINING = re.compile(r"\b(?:backward|grad|optimi\w*|learn\w*|\w*fit|\w*step|\w*train\w*|run\w*)\((?!False)")
#: Programs of which nobody needs the speed: ``train_dummy.py``.
_TRIAL = re.compile(r"(?:^|_)(?:test|dummy|smoke|toy)(?:_|\.)")
#: What goes backward, or has it done.
_BACKWARD = re.compile(r"backward|grad\b|step|fit|train|optimi|learn")
#: Other devices than the host.
_OTHERS = re.compile(r"cuda|gpu|mps|xpu", re.I)
_SWITCHES = frozenset({"set_detect_anomaly", "detect_anomaly"})
#: Functions, classes and files that are there to debug.
_MEANT = re.compile(
    r"debug|determin|reproduc|profil|sanit|seed|repro_|trace|check(?!point)|^_?(run_)?tests?(_|$)", re.I
)


class DebuggingLeftOn(Rule):
    """A switch for debugging is on for good, and makes the host wait for the device all the time.

    ## What it does
    Reports `torch.autograd.set_detect_anomaly(True)` and `with torch.autograd.detect_anomaly():`, and that
    `CUDA_LAUNCH_BLOCKING` is set to 1 in `os.environ`, where no test decides on it.

    ## Why is this bad
    Each helps to find a fault, and is slow. To detect anomalies, autograd looks for a NaN in every gradient that it
    works out, and the host waits for each answer; it also notes where every operation was called. With
    `CUDA_LAUNCH_BLOCKING=1` the host waits for every kernel, and nothing is queued ahead.

    ## Example
    ```python
    import torch

    torch.autograd.set_detect_anomaly(True)


    def fit(model, loader, optimizer, loss_of):
        for x, y in loader:
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()
    ```

    ## Use instead
    ```python
    import torch


    def fit(model, loader, optimizer, loss_of):
        for x, y in loader:
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()
    ```

    ## Fix safety
    The fix takes the line out where it stands alone. It is unsafe: a NaN raises no error any more. Where somebody may
    want the switch, offer an option, or set the variable outside of the program.

    ## Limits
    Silent where a test of the function or of the file decides on it, in tests, where the file also turns it off or puts
    it back, asks for deterministic results, or catches what `backward()` raises, in blocks in which nothing goes
    backward, in files that name the host and no other device, and in functions, classes and files that are called after
    debugging, checking, testing, profiling or reproducing. `TORCH_DISTRIBUTED_DEBUG` is not looked at: torch has read
    it when it is imported. Tentative, and kept back unless that is selected, in code that is copied from others, in
    files that use Lightning, whose trainer has a switch of its own, or call no `backward` themselves in a project that
    does, in files that ask models without autograd and call nothing that trains, and where it runs on import of a file
    of the project that nothing imports; and the variable in any case: programs that set it launch few kernels, or set
    it once something is on the device, so that readers held 16 of 24 such findings for true, five for arguable and
    three for wrong. So are programs that are called after tests or made-up data (`train_dummy.py`).

    Where autograd records nothing, detecting anomalies costs nothing; where it does, notes of where each operation was
    called made a forward pass of small operations three times as long. `CUDA_LAUNCH_BLOCKING` counts as long as nothing
    is on the device, also after `import torch` and `torch.cuda.is_available()` (both on an H200, with torch 2.11).

    Of 49 findings of a first form of it in public code, 41 were worth a change (31 of 35 of anomaly detection, 10 of 14
    of the variable); of the other eight, four are silent now.

    That `CUDA_LAUNCH_BLOCKING` has every launch wait is not proved by running: the driver reads it, and imaginary
    devices have none.

    In 1,914 more repositories and packages strict readers held 24 of 27 for true and three for wrong; of anomaly
    detection in 2,596 more, twelve of fifteen for true, two for arguable and one for wrong, which are mended; in 3,486
    more, 45 of 47 for true and two, of programs that work nothing out on a device, for wrong. In 366 repositories and
    4,991 packages since, they held 22 of 26 for true and four for wrong, three of them in one project that Lightning
    trains, which is tentative now.

    ## References
    - [Anomaly detection](https://pytorch.org/docs/stable/autograd.html#anomaly-detection)
    - [CUDA_LAUNCH_BLOCKING](https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-environment-variables)
    """

    group = "performance"
    fixable = "sometimes"

    def check(self) -> None:
        text = self.source.text
        if self.in_tests or not ("detect_anomaly" in text or any(name in text for name in _VARIABLES)):
            return
        is_trial = _TRIAL.search(near(self.source.path)[-1]) is not None
        for node, name, value in settings_of(self, _VARIABLES):
            wanted = self._is_wanted(node) or self._is_set_otherwise(name, node) or _REPEATABLE.search(text)
            if value == "1" and not wanted:
                told = f"`{name}` is left on: {_LAUNCHES}"
                # a program may bring next to nothing to a device, or be late with that
                self.report(node, told, fix=self._drop(node), tentative=True)
        switches = self._switches()
        if any(not on for _, on in switches) or self._stays_on_host() or self._catches():
            return
        for call, _ in switches:
            if not self._is_wanted(call) and self._goes_backward(call):
                told = f"anomaly detection is left on: {_ANOMALIES}"
                doubtful = is_copied(self, call) or self._is_trial(call) or self._is_turned_off(call)
                doubtful = doubtful or self._only_asks() or self._is_for_nobody(call) or self._nothing_learns(call)
                doubtful = doubtful or self._is_on_elsewhere() or is_trial
                self.report(call, told, fix=self._drop(call), tentative=doubtful)

    def _is_trial(self, call: cst.Call) -> bool:
        """Whether a file only tries out what it defines: ``if __name__ == "__main__": ...``, and nothing is trained."""
        if not any("__name__" in self.code(test) for test, _, _ in tests_above(self, call)):
            return False
        return all(called_name(each) != "step" for each in self.source.nodes_of(cst.Call))

    def _is_turned_off(self, call: cst.Call) -> bool:
        """``import lightning; torch.autograd.set_detect_anomaly(True)``: ``Trainer(detect_anomaly=False)``, which is
        the default since 1.5, turns it off while it fits."""
        lightning, project = not _LIGHTNING.isdisjoint(self.flow.scope.packages), self.flow.project
        if not lightning and ".backward(" not in self.source.text and project is not None:
            lightning = project.some_file_says("writes LightningModule") is True  # who imports this file trains
        return lightning and called_name(call) == "set_detect_anomaly"

    def _only_asks(self) -> bool:
        """Whether a file asks models without autograd, and calls nothing that trains: no gradient is checked there."""
        return _ASKING.search(self.source.text) is not None and not _TRAINING.search(self.source.text)

    def _is_on_elsewhere(self) -> bool:
        """``from tools import set_seed``, of a file that turns it on as well: without this line all stays as it is."""
        project = self.flow.project
        found = map(project.find, self.flow.scope.imports.values()) if project is not None else ()
        paths = {each.path for each in found if each is not None}
        return project is not None and any(
            project.file_says(path, f"writes {word}") for path in paths for word in _SWITCHES
        )

    def _nothing_learns(self, call: cst.Call) -> bool:
        """Whether a function or a program turns it on, and no name that its file calls or imports goes backward.

        ``def runner(rank): torch.autograd.set_detect_anomaly(True); benchmark(all_reduce, rank)``
        """
        project = self.flow.project
        if self.flow.function(call) is None and (project is None or project.is_imported()):
            return False  # what imports the file may train
        called = (last_word(dotted(each.func)) for each in self.source.nodes_of(cst.Call) if each is not call)
        names = *called, *self.flow.scope.imports.values()
        return not any(_BACKWARD.search(name.lower().replace("autograd", "")) for name in names)

    def _switches(self) -> list[tuple[cst.Call, bool]]:
        """The calls that turn anomaly detection on for good, or may turn it off."""
        found = []
        for call in self.source.nodes_of(cst.Call):
            name = self.flow.name_of(call)
            if last_word(name) not in _SWITCHES or not name.startswith("torch."):
                continue
            above = self.parent(call)
            if last_word(name) == "detect_anomaly":
                on = isinstance(above, cst.WithItem)
            else:
                on = isinstance(above, cst.Expr | cst.WithItem) and self._is_true(call)
            # check_nan=False: it notes where things were called, and reads no gradient
            found.append((call, on and argument(call, None, "check_nan") is None))
        return found

    def _is_true(self, call: cst.Call) -> bool:
        return bool(call.args) and self.code(call.args[0].value) == "True"

    def _stays_on_host(self) -> bool:
        """Whether the file chooses the host and names no other device."""
        # device = "cpu"
        chosen = [
            self.code(assign.value)
            for assign in self.source.nodes_of(cst.Assign)
            if names_device(last_word(dotted(assign.targets[0].target)))
        ]
        return bool(chosen) and all("cpu" in code for code in chosen) and not _OTHERS.search(self.source.text)

    def _catches(self) -> bool:
        """Whether the file catches what a gradient that is no number raises."""
        # try: loss.backward()   except RuntimeError: return best
        attempts = self.source.nodes_of(cst.Try)
        return any(
            attempt.handlers and (tree.named(attempt.body, "backward") or self._skips_step(attempt))
            for attempt in attempts
        )

    def _skips_step(self, attempt: cst.Try) -> bool:
        """``for batch in loader: try: self.train_batch(batch)``, ``except Exception: log(...)``"""
        if not isinstance(self.enclosing(attempt, cst.For, cst.While, cst.FunctionDef), cst.For | cst.While):
            return False
        broad = any(h.type is None or dotted(h.type) in ("Exception", "RuntimeError") for h in attempt.handlers)
        called = (called_name(each) for each in tree.walk(attempt.body) if isinstance(each, cst.Call))
        return broad and any(re.search(r"train|step|update|fit", name.lower()) for name in called)

    def _goes_backward(self, call: cst.Call) -> bool:
        """Whether what a block holds may go backward: without that, only where things were called is noted."""
        block = self.enclosing(call, cst.With, cst.BaseSuite)
        if not isinstance(block, cst.With):
            return True
        called = (each for each in tree.walk(block.body) if isinstance(each, cst.Call))
        return any(_BACKWARD.search(self.code(each.func)) and not self._is_silenced(each, block) for each in called)

    def _is_silenced(self, call: cst.Call, block: cst.With) -> bool:
        """``with detect_anomaly(): ...; with torch.no_grad(): model.test_step(batch)``"""
        return any(
            isinstance(each, cst.With) and any(_ASKING.search(self.code(item)) for item in each.items)
            for each in above(self.flow, call, block)
        )

    def _is_for_nobody(self, call: cst.Call) -> bool:
        """Whether it runs when a file is imported that is there to be imported, and that nothing imports."""
        from devlint.unused import may_be_run  # late: there are few to ask of

        project = self.flow.project
        if project is None or self.flow.function(call) is not None or "TestCase" in self.source.text:
            return False
        return not may_be_run(self.flow, project) and not project.is_imported()

    def _is_wanted(self, node: cst.CSTNode) -> bool:
        """Whether somebody decides on it, or what it stands in is there to debug."""
        if any("__name__" not in self.code(test) for test, _, _ in tests_above(self, node)):
            return True
        if isinstance(self.enclosing(node, cst.Try, cst.FunctionDef), cst.Try):
            return True  # tries something out, and puts it back
        names = [definition.name.value for definition in self.source.definitions(node)]
        if any("anomal" in name.lower() for name in names):
            return True  # def enable_anomaly_detection(): torch.autograd.set_detect_anomaly(True)
        return any(_MEANT.search(name) for name in [*names, self.source.path.rpartition("/")[2]])

    def _is_set_otherwise(self, name: str, node: cst.CSTNode) -> bool:
        """Whether the file also sets the variable elsewhere, or takes it out."""
        return self.source.text.count(name) > 1 and any(
            string.evaluated_value == name and not is_inside(self.flow, string, node)
            for string in self.source.nodes_of(cst.SimpleString)
        )

    def _drop(self, node: cst.CSTNode) -> Fix | None:
        """Take out the line of a statement that stands alone, where its block holds others."""
        line = self.enclosing(node, cst.SimpleStatementLine, cst.With)
        if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
            return None
        statement = line.body[0]
        if statement is not node and not (isinstance(statement, cst.Expr) and statement.value is node):
            return None
        edit = self.drop_statement(line)
        return self.fix("turn it off", edit, safe=False) if edit is not None else None
