"""The pytest plugin, and the callbacks for the real Lightning and transformers."""

from __future__ import annotations

import sys
from textwrap import dedent

import pytest

# pytester forgets what is imported while it runs, and torch cannot be imported twice
import devlint.runtime.guard
import devlint.runtime.report.text
import devlint.runtime.simulator  # noqa: F401

pytest_plugins = ["pytester"]

LOOP = """
    import devlint, pytest, torch

    def train(steps=5):
        model = torch.nn.Linear(2, 2).to("cuda")
        for _ in range(steps):
            loss = model(torch.ones(1, 2, device="cuda")).sum()
            loss.item()
            devlint.step()
"""


@pytest.fixture
def run(pytester: pytest.Pytester):
    """Runs pytest on one file of tests, in this process."""

    def run(source: str, *args: str) -> pytest.RunResult:
        pytester.makepyfile(dedent(LOOP) + dedent(source))
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist", *args)

    return run


def test_a_plugin_that_nobody_asks_anything_imports_no_torch(pytester):
    pytester.makepyfile(
        """
        import sys

        def test_inert():
            assert "torch" not in sys.modules
            assert not [name for name in sys.modules if name.startswith("devlint.runtime.g")]
        """
    )
    pytester.runpytest_subprocess("-p", "no:xdist").assert_outcomes(passed=1)


def test_the_marker_is_known_and_the_options_are_in_the_help(run):
    result = run("", "--markers", "--strict-markers")
    result.stdout.fnmatch_lines(["@pytest.mark.device_guard(*): run the test under devlint.guard*"])
    result = run("", "--help")
    result.stdout.fnmatch_lines(["*--device-guard*", "*--simulate-gpus=N|mps*"])


def test_a_test_under_a_budget_fails_with_the_line_to_blame(run):
    result = run(
        """
        @pytest.mark.device_guard(max_syncs=0, warmup_steps=1)
        def test_training():
            train()

        def test_free():
            train()
        """,
        "--simulate-gpus", "1",
    )  # fmt: skip
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["`max_syncs=0`: *in step 2*loss.item()*", "*device guard*", "*host-sync-in-loop*"])
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")


def test_the_option_guards_every_test_and_ends_with_it(run):
    result = run(
        """
        def test_mixed():
            torch.ones(2) + torch.ones(2, device="cuda")

        def test_fine():
            from devlint.runtime.guard import current
            assert current() is not None
            train()

        @pytest.fixture
        def unguarded():
            from devlint.runtime.guard import current
            assert current() is None
            yield
            assert current() is None

        def test_fixtures(unguarded):
            pass
        """,
        "--simulate-gpus", "2", "--device-guard",
    )  # fmt: skip
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*DevicePlacementError: *", "*was made by `torch.ones`*"])


def test_the_fixture_is_the_report_of_the_test(run):
    result = run(
        """
        def test_counts(device_guard):
            assert device_guard.steps == 0
            train(3)
            assert device_guard.steps == 3
            assert device_guard.simulated

        @pytest.mark.device_guard(on="collect")
        def test_collects(device_guard):
            with pytest.raises(RuntimeError):
                torch.ones(2) + torch.ones(2, device="cuda")
            assert not device_guard.ok
        """,
        "--simulate-gpus", "1",
    )  # fmt: skip
    result.assert_outcomes(passed=2)


def test_markers_of_classes_and_the_nearest_one_count(run):
    result = run(
        """
        import unittest

        @pytest.mark.device_guard(max_syncs=0)
        class TestAll:
            def test_waits(self):
                train()

            @pytest.mark.device_guard(max_syncs=9)
            def test_may_wait(self):
                train()

        @pytest.mark.device_guard(max_syncs=0)
        class TestOld(unittest.TestCase):
            def test_waits(self):
                train()
        """,
        "--simulate-gpus", "1",
    )  # fmt: skip
    result.assert_outcomes(passed=1, failed=2)


def test_a_failure_of_the_test_itself_comes_first(run):
    result = run(
        """
        @pytest.mark.device_guard(max_syncs=0)
        def test_fails():
            train()
            assert 1 == 2

        @pytest.mark.device_guard(max_syncs=0)
        def test_skips():
            train()
            pytest.skip("enough")

        @pytest.mark.device_guard
        def test_has_a_guard_of_its_own():
            with devlint.guard(max_syncs=0):
                train()
        """,
        "--simulate-gpus", "1",
    )  # fmt: skip
    result.assert_outcomes(failed=2, skipped=1)
    result.stdout.fnmatch_lines(["*assert 1 == 2*", "*BudgetExceeded*"])


def test_the_devices_are_there_from_the_first_conftest_to_the_end_of_the_session(pytester):
    import torch

    before = torch.cuda.is_available()
    pytester.makeconftest(
        """
        import torch
        HAS_GPU = torch.cuda.is_available()
        MODEL = torch.nn.Linear(2, 2).to("cuda")
        """
    )
    pytester.makepyfile(
        """
        import pytest, torch
        from conftest import HAS_GPU, MODEL

        @pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
        def test_on_gpu():
            assert HAS_GPU and torch.cuda.device_count() == 3
            assert MODEL.weight.is_cuda
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:xdist", "--simulate-gpus", "3")
    result.assert_outcomes(passed=1)
    assert torch.cuda.is_available() is before


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--simulate-gpus", "0"], "*`0` is neither a number of devices nor `mps`*"),
        (["--simulate-gpus", "many"], "*`many` is neither*"),
    ],
)
def test_a_number_of_devices_out_of_range_ends_the_session(run, args, said):
    result = run("def test_x(): pass", *args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([said])


def test_wrong_arguments_of_the_marker_fail_the_test_and_are_named(run):
    result = run(
        """
        @pytest.mark.device_guard(max_sinks=0)
        def test_unknown(): pass

        @pytest.mark.device_guard(max_syncs=-1)
        def test_negative(): pass

        @pytest.mark.device_guard(0)
        def test_by_position(): pass
        """
    )
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(["*max_sinks*", "*`max_syncs` is a number from 0*", "*takes its arguments by name*"])


@pytest.mark.parametrize("option", ["--simulate-gpus=1", "--device-guard"])
def test_without_torch_one_is_told_how_to_get_it(run, monkeypatch, option):
    monkeypatch.setitem(sys.modules, "torch", None)
    result = run("", option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(['*torch is not installed: `pip install "devlint*runtime*"`*'])


def test_without_torch_a_test_that_asks_for_a_guard_fails_in_one_line(pytester, monkeypatch):
    pytester.makepyfile("def test_it(device_guard): pass")
    monkeypatch.setitem(sys.modules, "torch", None)
    result = pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["devlint: torch is not installed: *"])


def test_workers_of_xdist_have_the_devices_and_the_guard(pytester):
    source = """
        def test_waits():
            train()

        def test_mixed():
            torch.ones(2) + torch.ones(2, device="cuda:1")
        """
    pytester.makepyfile(dedent(LOOP) + dedent(source))
    result = pytester.runpytest_subprocess("-n", "1", "--simulate-gpus", "2", "--device-guard")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*DevicePlacementError: *"])


# callbacks, in the real packages --------------------------------------------------------------------------

LIGHTNING = """
import sys, torch
from importlib import import_module
from devlint.runtime.simulator import simulate

package = import_module(sys.argv[1])

class Net(package.LightningModule):
    def __init__(self, faulty=False):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.shift = torch.zeros(2) if faulty else 0.0

    def training_step(self, batch, index):
        loss = self.layer(batch[0] + self.shift).sum()
        loss.item()
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

def fit(guard, net):
    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    data = torch.utils.data.TensorDataset(torch.ones(8, 2))
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    trainer = package.Trainer(max_epochs=1, accelerator="gpu", devices=1, callbacks=[guard], **quiet)
    trainer.fit(net, loader)

with simulate(1):
    from devlint.runtime.errors import BudgetExceeded
    from devlint.runtime.guard import current
    from devlint.runtime.lightning import DeviceGuard

    guard = DeviceGuard()
    assert isinstance(guard, package.Callback) and not guard.report.lines
    fit(guard, Net())
    print(guard.report.steps, [line.first.rule for line in guard.report.of("waited")], current())
    try:
        fit(DeviceGuard(max_syncs=0, warmup_steps=1), Net())
    except BudgetExceeded as error:
        print("exceeded", "loss.item()" in str(error), current())
    faulty = DeviceGuard()
    try:
        fit(faulty, Net(faulty=True))
    except RuntimeError as error:
        print("raised", "shift" in str(error), faulty.report.ok, current())
"""


@pytest.mark.slow
@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_a_lightning_training_is_guarded_step_by_step(pytester, package):
    script = pytester.makepyfile(train=LIGHTNING)
    result = pytester.run(sys.executable, script, package)
    assert result.ret == 0
    printed = [line for line in result.outlines if line.startswith(("4 ", "exceeded", "raised"))]
    assert printed == ["4 ['host-sync-in-loop'] None", "exceeded True None", "raised True False None"]


TRANSFORMERS = """
import torch
from devlint.runtime.simulator import simulate

with simulate(1):
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
    from devlint.runtime.errors import BudgetExceeded
    from devlint.runtime.guard import current
    from devlint.runtime.transformers import DeviceGuardCallback

    def train(guard, forward=None):
        ends = dict(bos_token_id=0, eos_token_id=0)
        model = GPT2LMHeadModel(GPT2Config(n_embd=8, n_head=2, n_layer=1, vocab_size=20, n_positions=8, **ends))
        if forward is not None:
            model.lm_head.forward = forward
        data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 8
        options = dict(report_to=[], save_strategy="no", disable_tqdm=True, logging_strategy="no", max_steps=4)
        arguments = TrainingArguments("out", per_device_train_batch_size=2, **options)
        Trainer(model=model, args=arguments, train_dataset=data, callbacks=[guard]).train()

    guard = DeviceGuardCallback()
    train(guard)
    copied = sum(line.bytes for line in guard.report.of("moved"))
    print("trained", guard.report.steps, guard.report.ok, copied, current())
    try:
        train(DeviceGuardCallback(max_bytes_to_device=100, warmup_steps=1))
    except BudgetExceeded as error:
        print("exceeded", str(error).split(":")[0], current())

    broken = DeviceGuardCallback(max_bytes_to_device=0)
    try:
        train(broken, lambda hidden: hidden + torch.ones(8))
    except RuntimeError as error:
        print("raised", "torch.ones" in str(error), current() is not None)
        broken.close()
        print("closed", broken.report.ok, current())
"""


@pytest.mark.slow
def test_a_training_of_transformers_is_guarded_step_by_step(pytester):
    script = pytester.makepyfile(train=TRANSFORMERS)
    result = pytester.run(sys.executable, script)
    assert result.ret == 0
    printed = [line for line in result.outlines if line.startswith(("trained", "exceeded", "raised", "closed"))]
    assert printed == [
        "trained 4 True 1024 None",  # two tensors of 2 x 8 int64 in each step
        "exceeded `max_bytes_to_device=100` None",
        "raised True True",
        "closed False None",
    ]
