"""`devlint run`: programs run as Python runs them, with a report at the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from click.testing import CliRunner

import devlint
from devlint.cli import main

posix = pytest.mark.skipif(sys.platform == "win32", reason="processes work otherwise there")

#: Where devlint's own frames are; the checkout around it may have its name, too.
PACKAGE = str(Path(devlint.__file__).parent)

LOOP = """\
import torch
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = torch.nn.Linear(4, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
total = 0.0
for _ in range(6):
    loss = model(torch.ones(2, 4, device=device)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss.item()
print("done")
"""


def write(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(dedent(text))
    return file


def python(*args: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    return subprocess.run(
        [sys.executable, *args], input=stdin, capture_output=True, text=True, env=variables, check=False
    )


def run(*args: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "devlint", "run", *args, stdin=stdin, **environment)


def run_here(*args: str) -> tuple[int, str]:
    """For what ends before any program is run."""
    result = CliRunner().invoke(main, ["run", *args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stderr


def without_report(stderr: str) -> str:
    program, mark, _ = stderr.partition("devlint run: ")
    assert mark
    return program


# as Python ----------------------------------------------------------------------------------------------

ABOUT = """\
    import __main__, atexit, inspect, pickle, sys, threading, time
    class Kept: pass
    main = sys.modules["__main__"]
    print(sys.argv, sys.path[0], __name__, __file__, __package__, __doc__, __spec__ and __spec__.name)
    print(type(pickle.loads(pickle.dumps(Kept()))) is Kept, main.Kept is Kept, inspect.getsource(Kept))
    print(sys.stdin.read(), sys.stdout.errors, __builtins__.__name__, "annotations" in globals())
    def late():
        time.sleep(0.2)
        print("thread", pickle.dumps(Kept())[:2])
    threading.Thread(target=late).start()
    atexit.register(lambda: print("exit", type(pickle.loads(pickle.dumps(Kept()))) is main.Kept))
    sys.stderr.write("words\\n")
    sys.exit(3)
    """


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("scripts/about.py", ["scripts/about.py", "--on", "-m", "a b", "--", "--report"]),
        ("package/__main__.py", ["-m", "package", "--help"]),
        ("package/part.py", ["-m", "package.part"]),
        ("folder/__main__.py", ["folder", "x"]),
    ],
)
def test_a_program_sees_what_python_shows_it(project, name, command):
    write(project, name, ABOUT)
    expected = python(*command, stdin="typed")
    got = run(*command, stdin="typed")
    assert (got.returncode, got.stdout) == (3, expected.stdout)
    assert expected.returncode == 3
    assert without_report(got.stderr) == expected.stderr


def test_a_program_on_standard_input_sees_what_python_shows_it(project):
    source = dedent("""\
        import sys
        print(sys.argv, repr(sys.path[0]), __name__, __file__, __cached__, __loader__, __spec__, repr(sys.stdin.read()))
        def fails():
            sys.exit(3 // len(sys.argv[2:]))
        fails()
        """)
    for arguments in (["-", "x"], ["-", "--on", "me"]):
        expected, got = python(*arguments, stdin=source), run(*arguments, stdin=source)
        assert (got.returncode, got.stdout) == (expected.returncode, expected.stdout)
        assert without_report(got.stderr).replace("    sys.exit(3 // len(sys.argv[2:]))\n", "") == expected.stderr
    assert 'File "<stdin>", line 4, in fails' in run("-", "x", stdin=source).stderr
    waits = "import torch\ntorch.ones(2, device='cuda').sum().item()\n"
    assert "<stdin>:2  torch.ones(2, device='cuda').sum().item()" in run("--simulate", "1", "-", stdin=waits).stderr


def test_an_exception_is_shown_as_python_shows_it_and_the_report_after_it(project):
    write(project, "fails.py", """\
        def inner():
            raise KeyError("no such key")
        try:
            inner()
        except KeyError as error:
            raise ValueError("it failed") from error
        """)  # fmt: skip
    expected, got = python("fails.py"), run("fails.py")
    assert (got.returncode, got.stdout) == (1, "")
    assert without_report(got.stderr) == expected.stderr
    assert expected.stderr.endswith("ValueError: it failed\n")


@pytest.mark.parametrize(
    "source",
    [
        "def broken(:\n",
        "import sys\nsys.exit('a message')\n",
        "import sys\nsys.excepthook = lambda *found: print(found[1], found[2].tb_lineno)\n1 / 0\n",
    ],
)
def test_other_ends_are_those_of_python(project, source):
    write(project, "ends.py", source)
    expected, got = python("ends.py"), run("ends.py")
    assert (got.returncode, got.stdout) == (expected.returncode, expected.stdout)
    assert without_report(got.stderr) == expected.stderr


def test_an_error_of_torch_is_shown_without_frames_of_devlint(project):
    write(project, "shapes.py", """\
        import torch
        x = torch.ones(2, 3, device="cuda")
        x @ torch.ones(2, 3, device="cuda")
        """)  # fmt: skip
    got = run("--simulate", "1", "shapes.py")
    assert got.returncode == 1
    shown = without_report(got.stderr)
    assert PACKAGE not in shown
    assert "line 3, in <module>" in shown
    assert "mat1 and mat2 shapes cannot be multiplied" in shown
    assert "devlint" in without_report(run("--simulate", "1", "shapes.py", DEVLINT_FULL_TRACEBACK="1").stderr)


@pytest.mark.parametrize(
    "fails", ["torch.ones(2, 3) @ torch.ones(2, 3)", "raise ValueError(3)"], ids=["torch's", "its own"]
)
def test_an_error_in_a_thread_is_shown_without_frames_of_devlint(project, fails):
    write(project, "threads.py", f"""\
        import threading, torch
        def work():
            {fails}
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        """)  # fmt: skip
    got = run("--simulate", "1", "threads.py")
    assert got.returncode == 0
    shown = without_report(got.stderr)
    assert shown.startswith("Exception in thread Thread-")
    assert "line 3, in work" in shown
    assert PACKAGE not in shown


def test_an_error_in_a_loaders_worker_is_shown_without_frames_of_devlint(project):
    write(project, "loads.py", """\
        import torch
        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 4
            def __getitem__(self, index):
                return torch.ones(2, 3) @ torch.ones(2, 3)
        if __name__ == "__main__":
            list(torch.utils.data.DataLoader(Data(), num_workers=1))
        """)  # fmt: skip
    got = run("--simulate", "1", "loads.py")
    assert got.returncode == 1
    shown = without_report(got.stderr)
    assert "RuntimeError: Caught RuntimeError in DataLoader worker process 0" in shown
    assert "line 6, in __getitem__" in shown
    assert PACKAGE not in shown


def test_a_mismatch_names_the_tensors_at_the_end_of_the_programs_own_traceback(project):
    write(project, "mixed.py", """\
        import torch
        here = torch.ones(3)
        there = torch.ones(3, device="cuda")
        here + there
        """)  # fmt: skip
    got = run("--simulate", "1", "mixed.py")
    assert (got.returncode, got.stdout) == (1, "")
    shown = without_report(got.stderr)
    assert f'File "{project / "mixed.py"}", line 4, in <module>\n    here + there\n' in shown
    assert "DevicePlacementError: " in shown
    assert f'File "{os.path.dirname(main.callback.__code__.co_filename)}' not in shown
    assert "mixed.py:4: error[tensor-without-device]" in got.stderr


@posix
def test_an_interrupted_program_gives_130_and_a_report(project):
    write(project, "waits.py", """\
        import signal, time
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
        print("ready", flush=True)
        time.sleep(60)
        """)  # fmt: skip
    command = [sys.executable, "-m", "devlint", "run", "waits.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    shown = without_report(stderr)
    assert shown.startswith("Traceback (most recent call last):\n")
    assert shown.endswith("KeyboardInterrupt\n")


@posix
def test_a_fork_that_comes_to_its_end_reports_nothing(project):
    write(project, "forks.py", """\
        import os, sys
        if os.fork() == 0:
            print("child", flush=True)
            sys.exit(5)
        print("parent", os.waitstatus_to_exitcode(os.wait()[1]))
        """)  # fmt: skip
    got = run("forks.py")
    assert (got.returncode, got.stdout) == (0, "child\nparent 5\n")
    assert got.stderr.count("devlint run: ") == 1


def test_spawned_processes_see_the_imaginary_devices_and_the_program(project):
    write(project, "spawns.py", """\
        import multiprocessing, torch
        class Job:
            device = "cuda:1"
        def work(job, results):
            results.put((torch.cuda.device_count(), str(torch.ones(2, device=job.device).device)))
        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            results = context.SimpleQueue()
            process = context.Process(target=work, args=(Job(), results))
            process.start()
            process.join()
            print(process.exitcode, results.get())
        """)  # fmt: skip
    got = run("--simulate", "2", "spawns.py")
    assert (got.returncode, got.stdout) == (0, "0 (2, 'cuda:1')\n"), got.stderr


def test_a_program_may_close_its_streams_and_change_its_folder(project):
    write(project, "rude.py", """\
        import os, sys
        os.mkdir("elsewhere")
        os.chdir("elsewhere")
        sys.stdout.close()
        sys.stderr = None
        """)  # fmt: skip
    got = run("--output-file", "run.json", "--report", "json", "rude.py")
    assert got.returncode == 0
    assert json.loads((project / "run.json").read_text())["folder"] == str(project)


# the guard's verdict --------------------------------------------------------------------------------------


def test_the_report_is_on_stderr_and_says_per_line_what_it_cost(project):
    write(project, "loop.py", LOOP)
    got = run("--simulate", "1", "loop.py")
    assert (got.returncode, got.stdout) == (0, "done\n")
    assert "devlint run: 6 steps on cuda:0 (imaginary)" in got.stderr
    assert "loop.py:11: warning[host-sync-in-loop]" in got.stderr
    assert "11 | total += loss.item()" in got.stderr
    assert "6 waits in 6 steps" in got.stderr


def test_a_broken_budget_gives_1_but_not_in_place_of_the_programs_own_code(project):
    write(project, "loop.py", LOOP)
    write(project, "ends.py", LOOP + "raise SystemExit(7)\n")
    for script, code in (("loop.py", 1), ("ends.py", 7)):
        got = run("--simulate", "1", "--max-syncs", "0", "--warmup-steps", "2", script)
        assert got.returncode == code
        assert "error: `max_syncs=0`" in got.stderr
        assert "Traceback" not in got.stderr


def test_an_error_that_the_program_survives_gives_1(project):
    write(project, "survives.py", """\
        import torch
        try:
            torch.ones(2) + torch.ones(2, device="cuda")
        except RuntimeError:
            print("survived")
        """)  # fmt: skip
    got = run("--simulate", "1", "--on", "collect", "survives.py")
    assert (got.returncode, got.stdout) == (1, "survived\n")
    assert "Found 1 error" in got.stderr


def test_a_report_goes_to_a_file_that_check_reads(project):
    write(project, "loop.py", LOOP)
    got = run("--simulate", "1", "--report", "json", "--output-file", "run.json", "loop.py")
    assert got.returncode == 0
    assert got.stderr == (
        "Found 1 warning; 1.33 waits and 13.3 B to the device a step, over 6 steps. The report is in run.json\n"
    )
    report = json.loads((project / "run.json").read_text())
    assert (report["steps"], report["simulated"]) == (6, True)
    checked = CliRunner().invoke(main, ["check", "--profile", "run.json", "--output-format", "concise", "loop.py"])
    assert "(waited once in each of 6 steps, on an imaginary device)" in checked.stdout


# what cannot be run ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "give a script to run"),
        (["-m"], "give a script to run"),
        (["nope.py"], "error: nope.py: no such file\n"),
        (["folder"], "error: folder: is a folder without a `__main__.py`\n"),
        (["null.py"], "error: null.py: is not Python source\n"),
        (["--output-file", "no/run.json", "here.py"], "cannot be written"),
        (["--output-file", ".", "here.py"], "cannot be written"),
        (["--simulate", "0", "here.py"], "`0` is neither a number of devices from 1 to 128 nor `mps`"),
        (["--simulate", "-1", "here.py"], "`-1` is neither"),
        (["--simulate", "tpu", "here.py"], "`tpu` is neither"),
        (["--on", "rais", "here.py"], "did you mean `raise`?"),
        (["--max-syncs", "-1", "here.py"], "-1 is not in the range"),
        (["--report", "htm", "here.py"], "did you mean `html`?"),
    ],
)
def test_what_cannot_be_run_is_said_and_gives_2(project, args, said):
    write(project, "here.py", "print('run')")
    (project / "folder").mkdir()
    (project / "null.py").write_bytes(b"a\0b")
    code, stderr = run_here(*args)
    assert code == 2
    assert said in stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["-m", "no_such_module"], "error: no module called `no_such_module`\n"),
        (["-m", "package"], "error: `package` is a package without a `__main__`\n"),
    ],
)
def test_a_module_that_is_not_there_is_said_and_gives_2(project, args, said):
    write(project, "package/__init__.py", "")
    got = run(*args)
    assert (got.returncode, got.stdout, got.stderr) == (2, "", said)


def test_without_torch_one_is_told_how_to_get_it(project, monkeypatch):
    write(project, "here.py", "print('run')")
    monkeypatch.setitem(sys.modules, "torch", None)
    code, stderr = run_here("here.py")
    assert (code, stderr) == (2, 'error: torch is not installed: `pip install "devlint[runtime]"`\n')


def test_a_torch_that_cannot_be_imported_is_named(project, monkeypatch):
    write(project, "here.py", "print('run')")
    write(project, "torch/__init__.py", "raise OSError('libcudart.so.12: cannot open shared object file')")
    got = run("here.py")
    said = "error: torch cannot be imported: libcudart.so.12: cannot open shared object file\n"
    assert (got.returncode, got.stdout, got.stderr) == (2, "", said)


def test_a_torch_that_is_too_old_is_named(project, monkeypatch):
    import torch

    write(project, "here.py", "print('run')")
    monkeypatch.setattr(torch, "__version__", "2.3.1+cu121")
    code, stderr = run_here("here.py")
    assert (code, stderr) == (2, "error: torch 2.3.1+cu121 is too old: the runtime companion needs 2.4 or later\n")


# what it costs --------------------------------------------------------------------------------------------


def test_help_names_run_and_the_linter_imports_nothing_of_it(project):
    assert "run" in CliRunner().invoke(main, ["--help"]).stdout
    code = (
        "import sys, devlint.cli as cli\n"
        "sys.argv = ['devlint', 'check', '-q', '.']\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "print(sorted(name for name in sys.modules if name == 'torch' or name.startswith('devlint.runtime')))"
    )
    assert python("-c", code).stdout == "[]\n"
