"""What the rest of a project says about a finding: whether anything runs that code, and where tensors are made."""

from __future__ import annotations

from pathlib import Path

import pytest

from devlint import mentions
from devlint.config import Settings
from devlint.files import File
from devlint.mentions import Mentions, says
from devlint.run import Plan, run

MASK = "        mask = torch.ones(x.size(0), x.size(0)).to(x.device)\n        return x * mask.tril()\n"
MODEL = f"import torch\nfrom torch import nn\n\n\nclass Causal(nn.Module):\n    def forward(self, x):\n{MASK}"


def write(root: Path, **files: str) -> None:
    (root / "pyproject.toml").touch()
    for name, content in files.items():
        path = root / name.replace("__dot__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def project(root: Path, model: str = MODEL, **others: str) -> list[str]:
    """The rules with findings in `pkg/model.py`, beside other files given as `folder/name.py`."""
    write(root, **{"pkg/__init__.py": "", "pkg/model.py": model, **others})
    return found(root, "pkg/model.py")


def found(root: Path, name: str, *, cache: bool = False) -> list[str]:
    path = str(root / name)
    settings = Settings(
        extend_select=("create-then-move", "invalid-device-argument", "tensor-without-device"), root=str(root)
    )
    outcome = run([File(path, path, settings)], Plan(use_cache=cache, jobs=1))
    assert not outcome.problems
    return [finding.rule for _, finding in outcome.findings]


@pytest.mark.parametrize(
    "others",
    [
        {"train.py": "from pkg.model import Causal\n"},
        {"train.py": "from pkg import model\n\nnet = model.Causal()\n"},
        {"train.py": "import pkg.model as m\n\nnet = m.Causal()\n"},
        {"pkg/__init__.py": "from .model import Causal\n"},
        {"pkg/__init__.py": "from .model import *\n"},
        {"pkg/__init__.py": "from . import (\n    data,\n    model,\n)\n\n__all__ = ['Causal']\n"},
        {"train.py": "net = build('pkg.model.Causal')\n"},
        {"train.ipynb": '{"source": ["from pkg.model import Causal\\n"]}'},
        {"config/net.yaml": "_target_: pkg.model.Causal\n"},
        {"docs/api.rst": ".. autoclass:: Causal\n"},
        {"README.md": "Use `Causal`.\n"},
    ],
    ids=lambda others: next(iter(others)) + " " + next(iter(others.values()))[:24].strip(),
)
def test_what_another_file_imports_or_documents_is_used(tmp_path: Path, others: dict[str, str]) -> None:
    assert project(tmp_path, **others) == ["create-then-move"]


@pytest.mark.parametrize(
    ("others", "rules"),
    [
        ({"train.py": "from pkg.model import *\n\nnet = Causal()\n"}, ["create-then-move"]),
        ({"train.py": "from pkg.model import *\n\nnet = Plain()\n"}, []),
        ({"train.py": "from pkg.model import *\n\nnet = eval(args.net)()\n"}, ["create-then-move"]),
        (
            {"nets.py": "from pkg.model import *\n", "train.py": "from nets import *\n\nnet = Causal()\n"},
            ["create-then-move"],
        ),
        ({"nets.py": "from pkg.model import *\n", "train.py": "from nets import *\n\nnet = Plain()\n"}, []),
    ],
)
def test_a_script_that_imports_all_names_uses_those_that_it_writes_down(
    tmp_path: Path, others: dict[str, str], rules: list[str]
) -> None:
    assert project(tmp_path, **others) == rules


def test_a_file_that_imports_another_of_its_own_name_does_not_use_itself(tmp_path: Path) -> None:
    model = MODEL.replace("from torch import nn", "from torch import nn\n\nfrom ..kernels.model import run\n\nrun()")
    assert project(tmp_path, model, **{"kernels/model.py": "def run(): ...\n"}) == []
    assert project(tmp_path, model, **{"kernels/other.py": "from pkg.model import Causal\n\nCausal()\n"}) == [
        "create-then-move"
    ]


@pytest.mark.parametrize(
    "others",
    [
        {},
        {"train.py": "from other import Causal\n"},
        {"train.py": "# from pkg.model import Causal\n"},
        {"pkg/copy.py": MODEL},
        {"train.py": "from pkg.model import Other\n"},
        {".hidden/train.py": "from pkg.model import Causal\n"},
    ],
    ids=["alone", "another one", "commented out", "a copy", "another name", "hidden"],
)
def test_what_no_file_of_its_project_names_is_tentative(tmp_path: Path, others: dict[str, str]) -> None:
    assert project(tmp_path, **others) == []


def test_what_a_function_defines_and_never_names_is_tentative_in_scripts_too(tmp_path: Path) -> None:
    inner = "    def grid(n, device):\n        return torch.rand(n, device=device).to(device)\n\n    return {}\n"
    code = "import torch\n\n\ndef warp(n, device):\n" + inner
    for given, rules in (("n", []), ("grid(n, device)", ["redundant-move"]), ("n  # grid", [])):
        write(tmp_path, **{"warp.py": code.format(given)})
        assert found(tmp_path, "warp.py") == rules


RUNS = "\n\nif __name__ == '__main__':\n    main()\n"


@pytest.mark.parametrize(
    ("script", "rules"),
    [
        ("from pkg.model import Causal\n", []),
        ("from pkg.model import (\n    Causal,\n    Other,\n)\n", []),
        ("from pkg.model import Other, \\\n    Causal\n", []),
        ("from pkg.model import Causal as Net\n\nnet = Net()\n", ["create-then-move"]),
        ("from pkg.model import Causal\n\nnet = Causal()\n", ["create-then-move"]),
        ("import pkg.model\n\nnet = pkg.model.Causal()\n", ["create-then-move"]),
    ],
    ids=["one", "in brackets", "in two lines", "renamed", "built", "by its module"],
)
def test_what_a_script_only_imports_is_used_by_nobody(tmp_path: Path, script: str, rules: list[str]) -> None:
    assert project(tmp_path, **{"train.py": script + RUNS}) == rules
    assert project(tmp_path, **{"train.py": script}) == ["create-then-move"]  # others may take it over from there


@pytest.mark.parametrize(
    ("name", "test", "rules"),
    [
        ("tests/test_model.py", "from pkg.model import Causal\n\n\ndef test_other():\n    assert 1\n", []),
        ("tests/test_model.py", "from pkg.model import Causal\n\n\ndef test_net():\n    Causal()\n", True),
        ("tests/conftest.py", "from pkg.model import Causal\n", True),
    ],
    ids=["only imports", "builds", "shares"],
)
def test_what_a_test_only_imports_is_used_by_nobody(
    tmp_path: Path, name: str, test: str, rules: list[str] | bool
) -> None:
    assert project(tmp_path, **{name: test}) == (["create-then-move"] if rules else [])


def test_what_a_file_only_hands_on_is_used_where_another_asks_it_for_that(tmp_path: Path) -> None:
    files = {"nets/__init__.py": "", "nets/parts.py": "from pkg.model import Causal\n\n\nclass Part:\n    pass\n"}
    use = {"nets/use.py": "from nets.parts import {}\n\nnet = {}()\n"}
    files |= {"nets/use.py": use["nets/use.py"].replace("{}", "Part"), ".git/HEAD": ""}
    assert project(tmp_path, **files) == ["create-then-move"]  # whoever installs it may ask for it
    (tmp_path / "pyproject.toml").unlink()
    assert found(tmp_path, "pkg/model.py") == []
    (tmp_path / "nets" / "use.py").write_text(use["nets/use.py"].replace("{}", "Causal"))
    assert found(tmp_path, "pkg/model.py") == ["create-then-move"]
    (tmp_path / "nets" / "use.py").write_text("from nets.parts import build\n\nnet = build('Causal')\n")
    (tmp_path / "nets" / "parts.py").write_text(
        "from pkg.model import Causal\n\n\ndef build(name):\n    return globals()[name]()\n"
    )
    assert found(tmp_path, "pkg/model.py") == ["create-then-move"]


def test_a_module_that_others_import_is_no_script(tmp_path: Path) -> None:
    write(tmp_path, **{"nets/model.py": MODEL, "nets/train.py": "from model import Other\n"})
    assert found(tmp_path, "nets/model.py") == []
    write(tmp_path, **{"nets/train.py": "from model import Causal\n\nCausal()\n"})
    assert found(tmp_path, "nets/model.py") == ["create-then-move"]


def test_a_script_and_a_file_of_tests_need_nobody_who_names_what_they_define(tmp_path: Path) -> None:
    write(tmp_path, **{"model.py": MODEL})
    assert found(tmp_path, "model.py") == ["create-then-move"]


@pytest.mark.parametrize("decorator", ["@register('causal')", "@MODELS.register_module()", "@hub.entry"])
def test_a_decorator_may_register_what_it_stands_on(tmp_path: Path, decorator: str) -> None:
    assert project(tmp_path, MODEL.replace("class ", f"{decorator}\nclass ")) == ["create-then-move"]


def test_a_name_in_main_code_of_the_file_counts_and_one_in_an_unused_definition_does_not(tmp_path: Path) -> None:
    assert project(tmp_path, f"{MODEL}\n\nMODELS = [Causal]\n") == ["create-then-move"]
    assert project(tmp_path, f"{MODEL}\n\ndef build():\n    return Causal()\n") == []
    assert project(tmp_path, f"{MODEL}\n\ndef build():\n    return Causal()\n\n\nbuild()\n") == ["create-then-move"]


@pytest.mark.parametrize(
    ("trial", "rules"),
    [
        ("def test():", []),
        ("def _test_causal():", []),
        ("def test(net):", ["create-then-move"]),
        ("def testify():", ["create-then-move"]),
        ("def build():", ["create-then-move"]),
    ],
)
def test_what_only_a_trial_beside_it_names_is_unused(tmp_path: Path, trial: str, rules: list[str]) -> None:
    name = trial[4:].partition("(")[0]
    model, others = f"{MODEL}\n\n{trial}\n    return Causal()\n", {"train.py": f"from pkg.model import {name}\n"}
    assert project(tmp_path, model, **others) == rules
    assert project(tmp_path, f"{model}\n\n{name}()\n", **others) == ["create-then-move"]


def test_a_name_in_a_docstring_of_its_file_is_no_use(tmp_path: Path) -> None:
    others = {"train.py": "from pkg.model import Flipped\n\nFlipped()\n"}
    described = MODEL + '\n\nclass Flipped:\n    """Causal, the other way round."""\n'
    assert project(tmp_path, described, **others) == []
    by_name = MODEL + '\n\nclass Flipped:\n    kind = "Causal"\n'
    assert project(tmp_path, by_name, **others) == ["create-then-move"]


def test_what_does_nothing_when_it_is_run_is_no_script(tmp_path: Path) -> None:
    write(tmp_path, **{"nets/model.py": MODEL, "setup.py": "setup()\n", "tests/test_net.py": "print(1)\n"})
    assert found(tmp_path, "nets/model.py") == ["create-then-move"]  # nothing else would run it, either
    write(tmp_path, **{"nets/model.py": MODEL, "train.py": "print(1)\n"})
    assert found(tmp_path, "nets/model.py") == []
    write(tmp_path, **{"train.py": "from nets.model import Causal\n\nCausal()\n"})
    assert found(tmp_path, "nets/model.py") == ["create-then-move"]
    write(tmp_path, **{"train.py": "print(1)\n", "nets/model.py": f"{MODEL}\n\nnet = Causal()\n"})
    assert found(tmp_path, "nets/model.py") == ["create-then-move"]


def test_what_imports_from_beside_itself_is_no_script(tmp_path: Path) -> None:
    relative = MODEL.replace("from torch import nn", "from torch import nn\n\nfrom .parts import run")
    write(tmp_path, **{"nets/model.py": f"{relative}\n\nrun()\n", "nets/parts.py": "def run(): ...\n"})
    assert found(tmp_path, "nets/model.py") == []
    write(tmp_path, **{"nets/model.py": f"{MODEL}\n\nrun()\n"})
    assert found(tmp_path, "nets/model.py") == ["create-then-move"]
    write(tmp_path, **{"nets/model.py": relative, "train.py": "from nets.model import Causal\n\nCausal()\n"})
    assert found(tmp_path, "nets/model.py") == ["create-then-move"]


BLOCK = "from pkg.model import Causal\n\n\nclass Block(Causal):\n    pass\n"


@pytest.mark.parametrize(
    ("others", "rules"),
    [
        ({}, []),
        ({"nets/stack.py": "from nets.block import Block\n\n\nclass Stack:\n    part = Block\n"}, []),
        ({"nets/stack.py": "from nets.block import Block\n\nif __name__ == '__main__':\n    print(Block)\n"}, True),
        ({"train.py": "from nets.block import Block\n\n\ndef train():\n    Block()\n"}, True),
        ({"nets/run.py": "from nets.block import Block\n\nnet = Block()\n"}, True),
        ({"nets/run.py": "import importlib\n\nnet = importlib.import_module('nets.' + name)\nmain()\n"}, True),
        ({"nets/run.py": "import importlib\n\nnet = importlib.import_module('models.' + name)\nmain()\n"}, []),
        ({"nets/use.ipynb": '{"source": ["from nets.block import Block\\n"]}'}, True),
        ({"config/net.yaml": "_target_: nets.block.Block\n"}, True),
        ({"tests/test_block.py": "from nets import block\n"}, True),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_what_only_files_name_that_nobody_imports_is_unused(
    tmp_path: Path, others: dict[str, str], rules: list[str] | bool
) -> None:
    files = {"nets/__init__.py": "", "nets/block.py": BLOCK, **others}
    assert project(tmp_path, **files) == (["create-then-move"] if rules else [])


def test_what_a_package_hands_on_is_used_where_others_install_it_or_ask_the_package_for_it(tmp_path: Path) -> None:
    files = {"pkg/__init__.py": "from .model import Causal\n", ".git/HEAD": ""}
    assert project(tmp_path, **files) == ["create-then-move"]
    (tmp_path / "pyproject.toml").unlink()
    assert found(tmp_path, "pkg/model.py") == []
    (tmp_path / "train.py").write_text("from pkg import Other\n")
    assert found(tmp_path, "pkg/model.py") == []
    (tmp_path / "train.py").write_text("from pkg import Causal\n")
    assert found(tmp_path, "pkg/model.py") == ["create-then-move"]
    (tmp_path / "train.py").write_text("from pkg import mask\n")
    (tmp_path / "pkg" / "__init__.py").write_text("from .model import Causal\n\n__all__ = ['Causal']\n")
    assert found(tmp_path, "pkg/model.py") == []
    (tmp_path / "pkg" / "__init__.py").write_text("from .model import Causal\n\n\ndef mask():\n    return Causal()\n")
    assert found(tmp_path, "pkg/model.py") == ["create-then-move"]


@pytest.mark.parametrize(
    ("others", "rules"),
    [
        ("from pkg.model import Plain\n\n\nclass Causal(Plain):\n    pass\n\n\nCausal()\n", []),
        ("import pkg.model\n\n\nclass Causal(pkg.model.Causal):\n    pass\n", ["create-then-move"]),
        ("from pkg.model import Causal, Plain\n\n\nclass Causal(Causal):\n    pass\n", ["create-then-move"]),
        ("from pkg.model import Causal, Plain\n\n\nclass Causal(Plain):\n    pass\n\n\nCausal()\n", []),
        ("from pkg.model import *\n\n\nclass Causal(Plain):\n    pass\n\n\nCausal()\n", []),
        ("from pkg.model import Causal\n\nOld = Causal\n\n\nclass Causal:\n    pass\n", ["create-then-move"]),
        ("class Causal:\n    pass\n\n\nfrom pkg.model import Causal\n\nCausal()\n", ["create-then-move"]),
        (
            "try:\n    from pkg.model import Causal\nexcept ImportError:\n\n    class Causal: ...\n\nCausal()\n",
            ["create-then-move"],
        ),
    ],
)
def test_a_file_that_defines_the_name_itself_names_its_own(tmp_path: Path, others: str, rules: list[str]) -> None:
    model = MODEL + "\n\nclass Plain(nn.Module):\n    pass\n"
    assert project(tmp_path, model, **{"train.py": others}) == rules


def test_files_that_import_each_other_are_reached_with_one_of_them(tmp_path: Path) -> None:
    ring = {
        "nets/block.py": "from nets import stack\n" + BLOCK,
        "nets/stack.py": "from nets import block\n\n\ndef stack():\n    return block.Block()\n",
    }
    other = MODEL.replace("Causal", "Other")
    files = {**ring, "pkg/other.py": other, "nets/use.py": "from pkg.other import Other\nfrom nets import stack\n"}
    assert project(tmp_path, **files) == []
    write(tmp_path, **{"train.py": "from nets import stack\n\nstack.stack()\n"})
    assert found(tmp_path, "pkg/model.py") == ["create-then-move"]
    assert found(tmp_path, "pkg/other.py") == []


def test_packages_that_hand_a_name_on_to_each_other_are_a_ring(tmp_path: Path) -> None:
    files = {"pkg/__init__.py": "from .nets import Causal\n", "pkg/nets/model.py": MODEL, ".git/HEAD": ""}
    write(tmp_path, **files, **{"pkg/nets/__init__.py": "from .. import Causal\nfrom .model import Causal\n"})
    (tmp_path / "pyproject.toml").unlink()
    assert found(tmp_path, "pkg/nets/model.py") == []


def test_definitions_that_only_name_each_other_are_unused(tmp_path: Path) -> None:
    ring = "\n\ndef one():\n    return two(Causal())\n\n\ndef two(net):\n    return one()\n"
    assert project(tmp_path, MODEL + ring) == []


METHOD = MODEL.replace("def forward(self, x):", "def forward(self, x):\n        return x\n\n    def masked(self, x):")


def test_a_method_that_nothing_reads_is_tentative(tmp_path: Path) -> None:
    train = "from pkg.model import Causal\n\nnet = Causal()\nfor x in batches:\n    y = net(x.cuda())\n"
    loop = METHOD.replace("        return x\n\n", "        return self.masked(x)\n\n")
    assert project(tmp_path, loop, **{"train.py": train}) == ["create-then-move"]
    follows = METHOD.replace(MASK, MASK.replace("return x", "other = torch.ones(3, device=x.device)\n        return x"))
    assert project(tmp_path, follows, **{"train.py": train}) == []
    assert project(tmp_path, follows, **{"train.py": train + "    net.masked(x)\n"}) == ["create-then-move"]
    assert project(tmp_path, follows, **{"train.py": train + "    getattr(net, 'masked')(x)\n"}) == ["create-then-move"]


def test_a_private_method_is_called_by_its_own_class_alone(tmp_path: Path) -> None:
    # Lightning may call any method of a module by its name, but not one that is called otherwise there
    fit = "from pkg.model import Causal\n\nCausal().fit()\n"
    base = METHOD.replace("(nn.Module)", "(lightning.LightningModule)").replace(
        "import torch\n", "import lightning\nimport torch\n", 1
    )
    follows = base.replace(MASK, MASK.replace("return x", "other = torch.ones(3, device=x.device)\n        return x"))
    assert project(tmp_path, follows, **{"train.py": fit}) == ["create-then-move"]
    assert project(tmp_path, follows.replace("def masked", "def __masked"), **{"train.py": fit}) == []


def test_a_copy_of_the_package_among_the_tests_is_kept_as_it_was(tmp_path: Path) -> None:
    code = "import torch\n\n\ndef fill(net, x: torch.Tensor, device):\n    x.to(device)\n    return net(x)\n"
    old = {"tests/v1/pkg/__init__.py": "from .rows import fill\n", "tests/v1/pkg/rows.py": code}
    write(tmp_path, **old)
    assert found(tmp_path, "tests/v1/pkg/rows.py") == ["discarded-move"]
    write(tmp_path, **{"pkg/rows.py": "def fill(x):\n    return x\n"})
    assert found(tmp_path, "tests/v1/pkg/rows.py") == []


def test_a_base_of_another_package_may_call_any_method(tmp_path: Path) -> None:
    follows = METHOD.replace(MASK, MASK.replace("return x", "other = torch.ones(3, device=x.device)\n        return x"))
    theirs = follows.replace("nn.Module", "LightningModule").replace(
        "from torch", "from lightning import LightningModule\nfrom torch"
    )
    train = {"train.py": "from pkg.model import Causal\n"}
    assert project(tmp_path, theirs, **train) == ["create-then-move"]


def test_a_file_that_needs_several_files_of_its_package_that_are_not_there_is_no_longer_run(tmp_path: Path) -> None:
    train = {"train.py": "from pkg.model import Causal\n"}
    one = f"from pkg.version import version\n{MODEL}"
    assert project(tmp_path, one, **train) == ["create-then-move"]
    assert project(tmp_path, f"from pkg.layers.norm import Norm\n{one}", **train) == []
    there = {"pkg/layers/norm.py": "", "pkg/version.py": ""}
    assert project(tmp_path, f"from pkg.layers.norm import Norm\n{one}", **train, **there) == ["create-then-move"]
    assert project(tmp_path, f"from pkg._c import a\nfrom pkg._d import b\n{MODEL}", **train) == ["create-then-move"]


@pytest.mark.parametrize(
    "code",
    [
        "torch.set_default_tensor_type('torch.cuda.FloatTensor')",
        "torch.set_default_tensor_type(torch.cuda.FloatTensor)",
        "torch.set_default_tensor_type(kind)",
        "torch.set_default_device('cuda')",
        "torch.set_default_device(device)",
        "torch.set_default_tensor_type('torch.FloatTensor' if not cuda else 'torch.cuda.FloatTensor')",
        "torch.set_default_device(\n    'cpu'\n    if not torch.cuda.is_available()\n    else 'cuda'\n)",
        "torch.set_default_device('cpu' if not torch.cuda.is_available() else 'cuda')",
        "with device:\n    model = Causal()",
        "with torch.no_grad():\n    with trainer.device:\n        model = Causal()",
        "with ExitStack() as stack:\n    stack.enter_context(torch.device(device))",
        "with fabric.init_module(empty_init=True):\n    model = Causal()",
        "with torch.device(device):\n    model.set_up(8)",
        "with torch.inference_mode(), torch.device('cuda'):\n    model.set_up(8)",
        "import poptorch\n\nmodel = poptorch.inferenceModel(Causal())",
    ],
)
def test_what_is_made_may_be_on_the_device_where_a_file_of_the_project_says_so(tmp_path: Path, code: str) -> None:
    train = f"import torch\nfrom pkg.model import Causal\n\n{code}\n"
    assert project(tmp_path, **{"train.py": train}) == []


@pytest.mark.parametrize(
    "code",
    [
        "torch.set_default_tensor_type(torch.DoubleTensor)",
        "torch.set_default_tensor_type('torch.FloatTensor')",
        "torch.set_default_device('cpu')",
        "torch.set_default_dtype(torch.float64)",
        "# torch.set_default_device('cuda')",
        "with torch.device('cpu'):\n    model.set_up(8)",
        "with torch.device('meta'):\n    model = Causal()",
        "torch.set_default_tensor_type(torch.DoubleTensor if args.exact else torch.FloatTensor)",
        "with torch.device('cpu' if args.load else 'meta'):\n    model = Causal()",
        "with cpu_device:\n    model = Causal()",
        "if args.device:\n    print('runs with device:')",
        "stack.enter_context(torch.device('cpu'))",
        "with torch.cuda.device(1):\n    model.set_up(8)",
    ],
)
def test_other_defaults_change_nothing(tmp_path: Path, code: str) -> None:
    train = f"import torch\nfrom pkg.model import Causal\n\n{code}\n"
    assert project(tmp_path, **{"train.py": train}) == ["create-then-move"]


def test_a_default_that_tests_set_is_theirs(tmp_path: Path) -> None:
    used = {"train.py": "from pkg.model import Causal\n"}
    assert project(tmp_path, **used, **{"tests/test_a.py": "torch.set_default_device('cuda')\n"}) == [
        "create-then-move"
    ]


def test_a_default_that_another_program_of_the_project_sets_is_that_program_s(tmp_path: Path) -> None:
    used = {"train.py": "from pkg.model import Causal\n"}
    other = {"game/other.py": "import torch\nimport pkg\n\ntorch.set_default_device('cuda')\n"}
    assert project(tmp_path, **used, **other) == ["create-then-move"]
    assert project(tmp_path, **used, **{"pkg/setup.py": "torch.set_default_device('cuda')\n"}) == []


@pytest.mark.parametrize("folder", ["bin", "examples/mnist", "experiments", "scripts", "tools"])
def test_a_default_that_a_script_sets_is_that_of_the_packages_beside_it(tmp_path: Path, folder: str) -> None:
    script = {f"{folder}/train.py": "import torch\nfrom pkg.model import Causal\n\ntorch.set_default_device('cuda')\n"}
    assert project(tmp_path, **script) == []
    used = {"tools/other.py": MODEL, "scripts/other.py": MODEL, "train.py": "from other import Causal\n"}
    write(tmp_path, **{name: code for name, code in used.items() if folder not in name})
    beside = "scripts/other.py" if folder == "tools" else "tools/other.py"
    assert found(tmp_path, beside) == ["create-then-move"]  # another program


def test_where_no_project_is_marked_nothing_is_known_of_what_lies_around(tmp_path: Path) -> None:
    project(tmp_path, **{"pkg/other.py": "torch.set_default_device('cuda')\n"})
    assert found(tmp_path, "pkg/model.py") == []
    (tmp_path / "pyproject.toml").unlink()
    assert found(tmp_path, "pkg/model.py") == ["create-then-move"]


def test_a_cached_finding_follows_what_other_files_name(tmp_path: Path) -> None:
    write(tmp_path, **{"pkg/__init__.py": "", "pkg/model.py": MODEL, "train.py": "from pkg.model import Causal\n"})

    def warm() -> list[str]:
        return found(tmp_path, "pkg/model.py", cache=True)

    assert warm() == warm() == ["create-then-move"]
    write(tmp_path, **{"train.py": "\n"})
    assert warm() == warm() == []
    write(tmp_path, **{"later.py": "from pkg.model import Causal\n"})
    assert warm() == warm() == ["create-then-move"]
    write(tmp_path, **{"later.py": "from pkg.model import Causal\nimport torch\ntorch.set_default_device('cuda')\n"})
    assert warm() == warm() == []


def test_a_cached_finding_follows_who_imports_those_that_name_it(tmp_path: Path) -> None:
    write(tmp_path, **{"pkg/__init__.py": "", "pkg/model.py": MODEL, "nets/__init__.py": "", "nets/block.py": BLOCK})
    assert found(tmp_path, "pkg/model.py", cache=True) == []
    write(tmp_path, **{"train.py": "from nets.block import Block\n\nBlock()\n"})
    assert found(tmp_path, "pkg/model.py", cache=True) == ["create-then-move"]
    (tmp_path / "train.py").unlink()
    assert found(tmp_path, "pkg/model.py", cache=True) == []


def test_in_a_tree_of_too_many_files_anything_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mentions, "_MOST_FILES", 2)
    assert Mentions(str(tmp_path)).answer("uses this") == ""
    write(tmp_path, **{f"{name}.py": "" for name in "abc"})
    assert Mentions(str(tmp_path)).answer("uses this") == mentions.TOO_MANY


def test_large_files_environments_and_what_cannot_be_read_are_no_part_of_it(tmp_path: Path) -> None:
    write(tmp_path, **{"env/pyvenv.cfg": "", "env/a.py": "x.this", "big.json": '"this"' + " " * 200_000})
    (tmp_path / "gone.py").symlink_to(tmp_path / "nothing.py")
    assert Mentions(str(tmp_path)).answer("uses this") == ""


@pytest.mark.parametrize("raw", [b"def this(self): ...", b"class this: ...", b"this = 3", b"# x.this", b"x.this_one"])
def test_only_an_attribute_or_a_string_is_a_use(raw: bytes) -> None:
    assert not says(raw, "a.py", "uses this")
    assert says(raw + b"\nx.this()", "a.py", "uses this")


@pytest.mark.parametrize(
    ("call", "rules"),
    [
        ("Rope('cpu', 8)", []),
        ("Rope(dim=width(8), device=torch.device('cpu'))", []),
        ("Rope('cuda', 8)", ["tensor-without-device"]),
        ("Rope(home, 8)\nwave = Wave('cpu')", ["tensor-without-device"]),
        ("Rope(home, 8)  # Rope('cpu', 8)", ["tensor-without-device"]),
    ],
)
def test_an_object_that_somebody_builds_with_the_host_may_work_there(
    tmp_path: Path, call: str, rules: list[str]
) -> None:
    rope = (
        "import torch\n\n\nclass Rope:\n    def __init__(self, device, dim):\n        self.device = device\n"
        "        self.steps = torch.arange(dim, device=self.device)\n\n    def turn(self, n):\n"
        "        return self.steps * torch.zeros(n, 1)\n"
    )
    run_it = f"from pkg.rope import Rope\n\nrope = {call}\nrope.turn(3)\n"
    write(tmp_path, **{"pkg/__init__.py": "", "pkg/rope.py": rope, "run.py": run_it})
    assert found(tmp_path, "pkg/rope.py") == rules
    write(tmp_path, **{"run.py": "from pkg.rope import Rope\n", "tests/test_rope.py": run_it})
    assert found(tmp_path, "pkg/rope.py") == ["tensor-without-device"]


@pytest.mark.parametrize(
    ("said", "others", "rules"),
    [
        ("", {}, []),
        ("  # on the device", {}, []),
        ("", {"train.py": "from shown import Net, Other\nprint(Net())\n"}, []),
        ("", {"train.py": "from shown import Net, Other\nNet().cuda()\n"}, ["tensor-without-device"]),
        ("", {"README.md": "Run shown.py, which is shown in full.\n"}, []),
    ],
)
def test_what_a_script_that_nobody_imports_runs_stays_on_the_host(
    tmp_path: Path, said: str, others: dict[str, str], rules: list[str]
) -> None:
    shown = (
        "import torch\nfrom torch import nn\n\n\nclass Other(nn.Linear): ...\n\n\nclass Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.head = nn.Linear(3, 2)\n\n"
        f"    def forward(self, x):{said}\n        return self.head(x) + torch.randn(2, 2)\n\n\n"
        "if __name__ == '__main__':\n    Other(3, 2)(torch.zeros(2, 3))\n"
    )
    write(tmp_path, **{"shown.py": shown, **others})
    assert found(tmp_path, "shown.py") == rules


def test_the_place_in_the_project_says_what_is_a_test_however_deep(tmp_path: Path) -> None:
    made = "    x = torch.ones(3, device='cuda')\n    y = torch.ones(3)\n"
    code = f"import torch\n\n\ndef step():\n{made}    return x + y\n"
    write(tmp_path, **{"tests/jobs/first/app/own/net.py": code, "jobs/first/app/own/net.py": code})
    assert found(tmp_path, "tests/jobs/first/app/own/net.py") == []
    assert found(tmp_path, "jobs/first/app/own/net.py") == ["tensor-without-device"]


def test_what_would_end_a_test_is_tentative_in_tests(tmp_path: Path) -> None:
    made = "    x = torch.ones(3, device='cuda')\n    y = torch.ones(3)\n"
    code = f"import torch\n\n\ndef test_sum():\n{made}    assert (x + y).sum()\n"
    write(tmp_path, **{"test_sum.py": code, "check.py": code})
    assert found(tmp_path, "check.py") == ["tensor-without-device"]
    assert found(tmp_path, "test_sum.py") == []


TWICE = "# Copyright (c) 2021 Acme, Inc. All rights reserved.\nimport torch\n\n\ndef noise(n, device):\n"
TWICE += "    return torch.rand(n, device=device).to(device)\n"


@pytest.mark.parametrize(
    ("opening", "rules"),
    [
        ("", ["redundant-move"]),
        ("# Copyright 2023 The ACME Team\n", ["redundant-move"]),
        ("# Copyright (c) Umbrella\n", []),
        ("# The above copyright notice shall be included\n", ["redundant-move"]),
        ("# Copyright (c) Umbrella\n# Copyright (c) by acme\n", ["redundant-move"]),
    ],
    ids=["nobody", "the same", "another", "a licence", "both"],
)
def test_what_others_wrote_is_kept_as_theirs(tmp_path: Path, opening: str, rules: list[str]) -> None:
    others = {"train.py": "from pkg.model import noise\n", "pkg/__init__.py": opening}
    assert project(tmp_path, TWICE, **others) == rules
    assert project(tmp_path, TWICE, **{**others, "pkg/__init__.py": "", "setup.py": opening}) == rules


@pytest.mark.parametrize(
    ("licence", "rules"),
    [
        ("MIT License\n\nCopyright (c) 2020-present, Umbrella\n", []),
        ("GNU GENERAL PUBLIC LICENSE\n\n Copyright (C) 2007 Free Software Foundation, Inc.\n", []),
        ("BSD 3-Clause License\n\nCopyright (c) 2017, ACME\n", ["redundant-move"]),
        ("Copyright [yyyy] [name of copyright owner]\n", ["redundant-move"]),
    ],
    ids=["another", "nobody's in particular", "the same", "not filled in"],
)
def test_the_licence_says_whose_work_the_project_is(tmp_path: Path, licence: str, rules: list[str]) -> None:
    assert project(tmp_path, TWICE, **{"train.py": "from pkg.model import noise\n", "LICENSE": licence}) == rules


RAISES = "import torch\n\n\ndef noise(x):\n    return torch.FloatTensor(3, device='cuda')\n"


@pytest.mark.parametrize(
    ("package", "setup", "is_own"),
    [
        ("mmdet", "", False),
        ("mmdet", "setup(name='my-net')\n", False),
        ("mmdet", "setup(\n    name='mmdet', version='1.0')\n", True),
        ("k_diffusion", "setup(name='k-diffusion')\n", True),
        ("funasr_detach", "", False),
        ("funasr2", "", True),
        ("my_diffusers", "", False),
        ("nets/mmdet", "", False),
        ("mmdet3d", "", False),
        ("mmdet3d_plugin", "", True),
        ("nets/transformers", "", True),
        ("nets/mmdet_heads", "", True),
        ("libs/mmdet", "", False),
    ],
)
@pytest.mark.parametrize(("rule", "code"), [("redundant-move", TWICE), ("invalid-device-argument", RAISES)])
def test_a_copy_of_a_package_that_everybody_knows_is_kept_as_it_is(
    tmp_path: Path, package: str, setup: str, is_own: bool, rule: str, code: str
) -> None:
    write(tmp_path, **{"setup.py": setup, "nets/__init__.py": "", "train.py": "from some.a import noise\n"})
    write(tmp_path, **{f"{package}/__init__.py": "", f"{package}/nn/__init__.py": "", f"{package}/nn/a.py": code})
    assert found(tmp_path, f"{package}/nn/a.py") == ([rule] if is_own else [])


@pytest.mark.parametrize(("repository", "is_own"), [("game", False), ("my-apex", True)])
def test_a_distribution_in_a_repository_of_another_name_is_a_copy(
    tmp_path: Path, repository: str, is_own: bool
) -> None:
    write(
        tmp_path, **{f"{repository}/apex/setup.py": "setup(name='apex')\n", f"{repository}/apex/apex/__init__.py": ""}
    )
    write(tmp_path, **{f"{repository}/.git/HEAD": "", f"{repository}/apex/apex/a.py": TWICE})
    write(tmp_path, **{f"{repository}/apex/train.py": "from apex.a import noise\n"})
    assert found(tmp_path / repository / "apex", "apex/a.py") == (["redundant-move"] if is_own else [])


def test_a_package_in_a_project_of_its_name_is_its_own(tmp_path: Path) -> None:
    root = tmp_path / "mmdetection"
    write(tmp_path, **{"mmdetection/mmdet/__init__.py": "", "mmdetection/mmdet/a.py": TWICE})
    write(root, **{"train.py": "from mmdet.a import noise\n"})
    assert found(root, "mmdet/a.py") == ["redundant-move"]


def test_a_cached_finding_follows_whose_work_the_package_is(tmp_path: Path) -> None:
    others = {"train.py": "from pkg.model import noise\n"}
    assert project(tmp_path, TWICE, **others) == ["redundant-move"]
    for opening, rules in (("", ["redundant-move"]), ("# Copyright (c) 2023 Umbrella\n", [])):
        write(tmp_path, **{"pkg/__init__.py": opening})
        assert found(tmp_path, "pkg/model.py", cache=True) == rules


@pytest.mark.parametrize(
    ("inner", "others", "rules"),
    [
        ("pkg/theirs", {"setup.py": "", "tests/test_net.py": ""}, []),
        ("pkg/theirs", {"pyproject.toml": "", "README.md": ""}, []),
        ("pkg/theirs", {"setup.py": ""}, ["redundant-move"]),  # what builds a part of the package
        ("pkg/theirs", {"README.md": ""}, ["redundant-move"]),
        ("pkg/one-more", {"setup.py": "", "README.md": ""}, ["redundant-move"]),
        ("libs/theirs", {"setup.py": "", "README.md": ""}, ["redundant-move"]),
    ],
    ids=["setup and tests", "pyproject and readme", "setup alone", "readme alone", "no module", "side by side"],
)
def test_a_distribution_in_a_package_is_kept_as_it_was(
    tmp_path: Path, inner: str, others: dict[str, str], rules: list[str]
) -> None:
    write(tmp_path, **{"pkg/__init__.py": "", f"{inner}/net/model.py": TWICE})
    write(tmp_path, **{f"{inner}/{name}": content for name, content in others.items()})
    assert found(tmp_path, f"{inner}/net/model.py") == rules


@pytest.mark.parametrize(
    ("folder", "rules"),
    [
        ("nets/Other-master/net", []),
        ("Other-main/net", []),
        ("Other-master_small/net", []),
        ("nets/master/net", ["redundant-move"]),
        ("nets/web-mainline/net", ["redundant-move"]),
    ],
)
def test_what_an_archive_of_a_branch_unpacked_to_is_kept_as_it_is(
    tmp_path: Path, folder: str, rules: list[str]
) -> None:
    write(tmp_path, **{"setup.py": "", f"{folder}/model.py": TWICE})
    assert found(tmp_path, f"{folder}/model.py") == rules


@pytest.mark.parametrize(
    ("others", "rules"),
    [
        (("train.py", "theirs-2.1/LICENSE.txt"), []),
        (("theirs-2.1/LICENSE.txt",), ["redundant-move"]),  # one of several, side by side
        (("train.py",), ["redundant-move"]),
        (("train.py", "setup.py", "theirs-2.1/LICENSE.txt"), ["redundant-move"]),
    ],
    ids=["beside scripts", "no scripts", "no licence of its own", "a distribution around it"],
)
def test_a_distribution_with_its_licence_beside_scripts_is_kept_as_it_was(
    tmp_path: Path, others: tuple[str, ...], rules: list[str]
) -> None:
    whole = {"theirs-2.1/pyproject.toml": "", "theirs-2.1/README.md": "", "theirs-2.1/net/model.py": TWICE}
    repository = tmp_path / "repository"
    for name, content in {**whole, ".git/HEAD": "", **dict.fromkeys(others, "")}.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(content)
    assert found(repository / "theirs-2.1", "net/model.py") == rules


def test_what_lies_deep_in_a_folder_of_others_is_theirs(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    own, others = tmp_path / "nets" / "own", tmp_path / "nets" / "thirdparty" / "own"
    for root in (own, others):
        root.mkdir(parents=True)
        write(root, **{"train.py": "from slam.a.b.warp import noise\n", "slam/a/b/warp.py": RAISES})
    assert found(own, "slam/a/b/warp.py") == ["invalid-device-argument"]
    assert found(others, "slam/a/b/warp.py") == []


@pytest.mark.parametrize(
    ("head", "rules"),
    [
        ("# AUTO-GENERATED FILE - DO NOT EDIT DIRECTLY\n", []),
        ("#!/usr/bin/env python\n# Code generated by opgen. Do not edit.\n\n", []),
        ("# -*- coding: utf-8 -*-\n#\n# This file was automatically generated from src/model.py\n", []),
        ("# @generated\n", []),
        ('"""Autogenerated by make."""\n', []),
        ("# Samples are generated by the model.\n", ["create-then-move"]),
        ("# Edit what you like.\n", ["create-then-move"]),
    ],
)
def test_a_file_that_is_generated_is_mended_elsewhere(tmp_path: Path, head: str, rules: list[str]) -> None:
    assert project(tmp_path, head + MODEL, **{"train.py": "from pkg.model import Causal\n"}) == rules
    below = MODEL + "\n\n# the tables below are auto-generated\n"
    assert project(tmp_path, below, **{"train.py": "from pkg.model import Causal\n"}) == ["create-then-move"]


def test_a_project_may_lie_in_such_a_folder_itself(tmp_path: Path) -> None:
    root = tmp_path / "net-main"
    write(tmp_path, **{"net-main/pyproject.toml": "", "net-main/net/model.py": TWICE})
    assert found(root, "net/model.py") == ["redundant-move"]


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ("from pkg.left.model import Causal", []),
        ("from pkg.left.model import *", []),
        ("from pkg.model import Causal", ["create-then-move"]),
        ("from other.left.model import Causal", ["create-then-move"]),  # what a setup may call this package
        ("from .model import Causal", ["create-then-move"]),
        ("from pkg.left.model import Causal\nfrom pkg.model import Causal", ["create-then-move"]),
    ],
)
def test_another_file_of_that_name_is_another_one(tmp_path: Path, line: str, rules: list[str]) -> None:
    others = {"pkg/left/__init__.py": "", "pkg/left/model.py": MODEL, "train.py": f"{line}\n"}
    assert project(tmp_path, **others) == rules


@pytest.mark.parametrize("room", [0, 1_000_000])
def test_answers_are_the_same_whether_files_are_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr(mentions, "_KEPT", room)
    write(tmp_path, **{"one.py": "x.this\n"})
    asked = Mentions(str(tmp_path))
    assert [bool(asked.answer(f"uses {name}")) for name in ("this", "that", "this")] == [True, False, True]


CLIPS = """\
from torch.nn.utils import clip_grad_norm_


class Trainer:
    def __init__(self, cfg, model, optimizer, scaler):
        self.cfg, self.model, self.optimizer, self.scaler = cfg, model, optimizer, scaler

    def step(self, loss):
        self.scaler.scale(loss).backward()
        if self.cfg.train.clip_norm > 0:
            clip_grad_norm_(self.model.parameters(), self.cfg.train.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
"""


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({}, True),
        ({"config/all.py": "cfg.train.clip_norm = -1.\n"}, False),
        ({"config/all.py": "cfg.train.clip_norm = 1.0\n"}, True),
        ({"config/all.yaml": "train:\n  clip_norm: 0.0\n  lr: 0.1\n"}, False),
        ({"config/all.yaml": "clip_norm: null\n", "config/large.yaml": "clip_norm: 0.5  # else it diverges\n"}, True),
        ({"config/all.py": "class Train:\n    clip_norm: float = 0.0\n"}, False),
        ({"train.py": "parser.add_argument('--clip-norm', type=float, default=0, help='(off)')\n"}, False),
        ({"train.py": "parser.add_argument('--clip_norm', type=float)\n"}, False),
        ({"train.py": "parser.add_argument('--clip_norm', default=5.0)\n"}, True),
        ({"train.py": "parser.add_argument('--clip-norm', default=0)\n", "run.sh": "train.py --clip-norm 2\n"}, True),
        ({"train.py": "clip_norms = 0\nself.clip_normal = 0\n"}, True),
    ],
    ids=lambda value: " ".join(value.values()) if isinstance(value, dict) else "",
)
def test_what_a_limit_waits_for_that_no_setting_gives_is_tentative(
    tmp_path: Path, settings: dict[str, str], shown: bool
) -> None:
    write(tmp_path, **{"trainer.py": CLIPS, "main.py": "from trainer import Trainer\n\nTrainer()\n", **settings})
    path = str(tmp_path / "trainer.py")
    chosen = Settings(extend_select=("clipped-while-scaled",), root=str(tmp_path))
    outcome = run([File(path, path, chosen)], Plan(use_cache=False, jobs=1))
    assert bool(outcome.findings) is shown


@pytest.mark.parametrize(
    ("path", "rules"),
    [
        ("pkg/_deprecated/model.py", []),
        ("pkg/old/model.py", []),
        ("archive/model.py", []),
        ("pkg/retired_benchmarks/model.py", []),
        ("pkg/model_old.py", []),
        ("pkg/model copy.py", []),
        ("pkg/archiver/model.py", ["redundant-move"]),
        ("pkg/old_faithful/model.py", ["redundant-move"]),
        ("pkg/archive.py", ["redundant-move"]),
        ("pkg/threshold.py", ["redundant-move"]),
    ],
)
def test_what_lies_with_what_nobody_works_on_any_more_is_tentative(tmp_path: Path, path: str, rules: list[str]) -> None:
    write(tmp_path, **{path: TWICE + "\n\nnoise(3, 'cuda')\n"})
    assert found(tmp_path, path) == rules


@pytest.mark.parametrize(
    ("loaders", "rules"),
    [
        ("class Other: ...\n", []),
        ("class Loader: ...\n", ["redundant-move"]),
        ("from .parts import *\n", []),
        ("from elsewhere import *\n", ["redundant-move"]),
        ("def __getattr__(name): ...\n", ["redundant-move"]),
        ("KINDS = {}\nglobals().update(KINDS)\n", ["redundant-move"]),
        ("for name in ('Loader',):\n    pass\n\nx = 1\n", ["redundant-move"]),
        ("", ["redundant-move"]),
    ],
    ids=["gone", "there", "not in what it takes over", "outside", "asked", "made", "named", "empty"],
)
def test_a_script_that_imports_a_name_that_its_module_no_longer_gives_is_not_run(
    tmp_path: Path, loaders: str, rules: list[str]
) -> None:
    files = {"net/__init__.py": "", "net/loaders.py": loaders, "net/parts.py": "def part(): ...\n"}
    script = f"{TWICE}\n\nnoise(3, 'cuda')\n"
    write(tmp_path, **files, **{"train.py": f"from net.loaders import Loader\n{script}"})
    assert found(tmp_path, "train.py") == rules
    write(
        tmp_path, **{"train.py": f"try:\n    from net.loaders import Loader\nexcept ImportError:\n    pass\n{script}"}
    )
    assert found(tmp_path, "train.py") == ["redundant-move"]


def test_a_package_gives_its_modules_and_what_is_compiled_in_it(tmp_path: Path) -> None:
    files = {"net/__init__.py": "x = 1\n", "net/loaders.py": "", "net/kernels.pyx": ""}
    script = f"from net import loaders, kernels\n{TWICE}\n\nnoise(3, 'cuda')\n"
    write(tmp_path, **files, **{"train.py": script})
    assert found(tmp_path, "train.py") == ["redundant-move"]
    write(tmp_path, **{"train.py": script.replace("kernels", "gone")})
    assert found(tmp_path, "train.py") == []


MEETS = "        return x + torch.ones(3)\n"
LAYER = f"import torch\nfrom torch import nn\n\n\nclass Shift(nn.Module):\n    def forward(self, x):\n{MEETS}"


@pytest.mark.parametrize(
    ("others", "rules"),
    [
        ({"train.py": "from pkg.layer import Shift\n\nprint(Shift())\n"}, []),
        ({"train.py": "from pkg.layer import Shift\n\nShift().cuda()\n"}, ["tensor-without-device"]),
        ({"train.py": "from pkg.layer import Shift\n\nShift().to(args.device)\n"}, ["tensor-without-device"]),
        ({"train.py": "from pkg.layer import Shift\n\n# Shift().cuda()\nprint(Shift())\n"}, []),
        ({"train.py": "from pkg.layer import Shift\n\nprint(Shift()(x.to(y.device)))\n"}, []),
        (
            {"train.ipynb": '{"source": ["from pkg.layer import Shift\\n", "Shift().cuda()"]}'},
            ["tensor-without-device"],
        ),
        # by way of what imports it
        (
            {"pkg/net.py": "from .layer import Shift\n\nnet = Shift()\n", "train.py": "import pkg.net\n\nf(gpus=2)\n"},
            ["tensor-without-device"],
        ),
        # of another file that is called so, or of another package
        ({"other/layer.py": "", "other/run.py": "from .layer import Shift\n\nShift().cuda()\n"}, []),
        ({"other/run.py": "from outside.layer import Shift\n\nShift().cuda()\n"}, []),
        # nothing imports it where it is moved
        ({"use.py": "from pkg.layer import Shift\n\nprint(Shift())\n", "train.py": "net.cuda()\n"}, []),
    ],
)
def test_what_no_file_that_imports_it_brings_to_a_device_stays_on_the_host(
    tmp_path: Path, others: dict[str, str], rules: list[str]
) -> None:
    write(tmp_path, **{"pkg/__init__.py": "", "pkg/layer.py": LAYER, "pkg/README.md": "`Shift`\n", **others})
    assert found(tmp_path, "pkg/layer.py") == rules


def test_a_cached_answer_does_not_outlive_what_brought_code_to_a_device(tmp_path: Path) -> None:
    use = "from pkg.layer import Shift\n\nShift()"
    write(tmp_path, **{"pkg/__init__.py": "", "pkg/layer.py": LAYER, "use.py": f"{use}.cuda()\n"})
    assert found(tmp_path, "pkg/layer.py", cache=True) == ["tensor-without-device"]
    write(tmp_path, **{"use.py": f"{use}.eval()\n"})
    assert found(tmp_path, "pkg/layer.py", cache=True) == []


FAILS = (
    "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self, width, wide=False):\n"
    "        super().__init__()\n        self.cells = 3\n{set_up}\n\n"
    "    def build(self):\n{build}\n\n    def forward(self, x):\n{first}\n        return x + torch.ones(3)\n\n\n"
    "Net(3).cuda()\n"
)


@pytest.mark.parametrize(
    ("changed", "rules"),
    [
        ({}, ["tensor-without-device"]),
        # the only assignment is commented out
        ({"set_up": "        # self.head = nn.Linear(3, 2)", "first": "        x = self.head(x)"}, []),
        ({"set_up": "        #self.depth = 3\n        self.rows = [0] * self.depth"}, []),
        ({"set_up": "        # self.depth = 3\n        self.build()", "build": "        print(self.depth)"}, []),
        # nothing binds the name
        ({"first": "        x = functional.relu(x)"}, []),
        ({"set_up": "        self.encoder = Encoder(3)"}, []),
        # what is set after all, and what may be
        (
            {"set_up": "        # self.head = nn.Linear(3, 2)\n        self.head = None", "first": "        self.head"},
            ["tensor-without-device"],
        ),
        (
            {"set_up": "        # self.head = None\n        setattr(self, 'head', None)", "first": "        self.head"},
            ["tensor-without-device"],
        ),
        # a device is no string
        ({"first": "        if x.device == 'cpu':\n            return x * torch.ones(4)"}, ["tensor-without-device"]),
        ({"first": "        if x.dtype == 'a':\n            return x * torch.ones(4)"}, ["tensor-without-device"] * 2),
        # few runs get there, or they get there later
        (
            {
                "set_up": "        # self.head = nn.Linear(3, 2)",
                "first": "        if self.cells > 3:\n            self.head",
            },
            ["tensor-without-device"],
        ),
        ({"set_up": "        if wide:\n            self.encoder = Encoder(3)"}, ["tensor-without-device"]),
        ({"build": "        return Encoder(3)"}, ["tensor-without-device"]),
        # names that are bound in other ways
        (
            {"first": "        from torch.nn import functional as F, init\n        F.relu(x), init"},
            ["tensor-without-device"],
        ),
        (
            {"first": "        try:\n            profile\n        except NameError:\n            pass"},
            ["tensor-without-device"],
        ),
        ({"first": "        rows: list[Rows] = []"}, ["tensor-without-device"]),
        ({"first": "        [y for y in x], (lambda z: z), __file__, self.cells"}, ["tensor-without-device"]),
    ],
)
def test_code_that_fails_on_any_device_before_it_gets_there_matters_to_nobody(
    tmp_path: Path, changed: dict[str, str], rules: list[str]
) -> None:
    parts = {"set_up": "        pass", "build": "        pass", "first": "        pass", **changed}
    write(tmp_path, **{"net.py": FAILS.format(**parts)})
    assert found(tmp_path, "net.py") == rules


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ("from pkg.model import Causal", ["create-then-move"]),
        ("from pkg.model import Causal as Causal", ["create-then-move"]),
        ("from pkg.model import Causal as Masked", ["create-then-move"]),
        ("from pkg.model import Masked as Causal", []),
        ("from pkg.model import Other, Masked as Causal", []),
        ("from pkg.model import Other, Masked as Causal  # not Causal", []),
    ],
)
def test_a_name_that_another_one_is_imported_by_names_that_one(tmp_path: Path, line: str, rules: list[str]) -> None:
    model = MODEL + "\n\nclass Masked(nn.Linear): ...\n\n\nclass Other(nn.Linear): ...\n"
    train = f"{line}\n\nnet = Causal() if isinstance(x, Causal) else Masked()\n"
    assert project(tmp_path, model, **{"train.py": train}) == rules


def test_many_blank_lines_with_spaces_are_read_in_one_way() -> None:
    block = "with torch.no_grad():\n    pass\n" + " " * 8 + "\n"
    blank = (" " * 8 + "\n") * 60
    assert not says((block + blank + "x = 1\n").encode(), "a.py", "silences evaluate")
    assert not says((block + blank + "evaluate(net)\n").encode(), "a.py", "silences evaluate")
    assert says((block + blank + "    evaluate(net)\n").encode(), "a.py", "silences evaluate")


RESTORE = """from torch import nn


def restore(model: nn.Module, states, device):
    model.load_state_dict(states, device=device)
    return model.to(device)
"""
OWN = "class Head(Module):\n    def load_state_dict(self, state, strict=True, {}=None):\n        return state\n"


@pytest.mark.parametrize(("word", "rules"), [("device", []), ("assign", ["invalid-device-argument"])])
def test_a_word_that_a_method_of_the_project_takes_may_be_right(tmp_path: Path, word: str, rules: list[str]) -> None:
    others = {"train.py": "from pkg.model import restore\n\nrestore(None)\n", "pkg/head.py": OWN.format(word)}
    assert project(tmp_path, RESTORE, **others) == rules


PLACES = [
    "net.eye = net.eye.cuda()",
    "self.net.eye = eye",
    "for net in nets: net.eye = make(net)",
    "nets[0].eye=eye",
    "net.a, net.eye = pair",
    "(net.eye, net.a) = pair",
    "trainer.net.eye.to(device)",
    "net.eye.cuda()",
    "self.eye = self.eye.to(self.device)",
    "setattr(net, 'eye', eye)",
]
PLACES_NOT = [
    "self.eye = eye",
    "self.eye, rest = pair",
    "x = self.eye.to(x)",
    "self.args.eye = eye",
    "batch.eye.to(device)",
    "net.eye = 0.5",
    "net.eye = None",
    "net.eye == eye",
    "crop(net.eye, size=3)",
    "net.eye.to(torch.float16)",
    "net.eye.to('cpu')",
    "net.eyes = eye",
    "# net.eye = eye",
    "print(f'{net.eye=}')",
]


@pytest.mark.parametrize(
    ("code", "answer"), [*((code, True) for code in PLACES), *((code, False) for code in PLACES_NOT)]
)
def test_what_sets_or_moves_an_attribute_of_something_places_it(code: str, answer: bool) -> None:
    assert says(f"{code}\n".encode(), "a.py", "places eye") == answer
    assert not says(f"{code}\n".encode(), "tests/test_a.py", "places eye")


LOOP = "for key, value in vars(net).items():\n    if torch.is_tensor(value):\n        "
SWEEPS = [
    f"{LOOP}setattr(net, key, value.to(device))",
    f"{LOOP}value = value.to(device)\n        setattr(net, key, value)",
    f"{LOOP}value.data = value.data.cuda()",
    f"{LOOP}net.__dict__[key] = value.to(device)",
    "setattr(\n    net, name, getattr(net, name).cuda()\n)",
    "net.__dict__.update({key: value.to(device) for key, value in rows})",
    "for part in list(trainer.__dict__.values()):\n    if isinstance(part, nn.Module):\n        part.to(device)",
]
SWEEPS_NOT = [
    # that is asked of the flow, for its heirs
    "for key, value in vars(self).items():\n    setattr(self, key, value.to(device))",
    "for key, value in vars(args).items():\n    print(key, value)\nnet.to(device)",
    "setattr(net, 'eye', eye.to(device))",
    "rows = rows.to(device)\nsetattr(net, key, value)",
    "setattr(net, key, value); net.to(device)",
    "def move(net):\n    '''Does ``setattr(net, key, value.to(device))``.'''",
    "# setattr(net, key, value.to(device))",
]


@pytest.mark.parametrize(
    ("code", "answer"), [*((code, True) for code in SWEEPS), *((code, False) for code in SWEEPS_NOT)]
)
def test_what_moves_whatever_something_has_sweeps(code: str, answer: bool) -> None:
    assert says(f"{code}\n".encode(), "a.py", "sweeps") == answer
    assert not says(f"{code}\n".encode(), "tests/test_a.py", "sweeps")


def test_what_tests_are_made_with_places_nothing(tmp_path: Path) -> None:
    write(tmp_path, **{"fixtures/case/train.py": "net.eye = net.eye.cuda()\n"})
    assert Mentions(str(tmp_path)).answer("places eye") == ""
    assert Mentions(str(tmp_path / "fixtures")).answer("places eye") != ""
