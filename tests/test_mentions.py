"""What the text of a file says of the attributes of modules that other files define."""

from __future__ import annotations

import pytest

from devlint.mentions import says

SWEEPS = {
    "moved": "for k, v in vars(net).items():\n    setattr(net, k, v.to(device))\n",
    "moved by itself": "    if torch.is_tensor(part):\n        setattr(thing, name, to_device(part, device))\n",
    "in its dictionary": "thing.__dict__[key] = recursive_to(value, device, seen)\n",
    "in two lines": "    part = move(part, device)\n    setattr(module, key, part)\n",
    "made parameters": "setattr(net, key, nn.Parameter(getattr(net, key)))\n",
    "made buffers": "net.register_buffer(key, net.__dict__.pop(key))\n",
    "loaded": "saved = torch.load(path)\nfor key in KEYS:\n    setattr(model, key, saved[key])\n",
    "loaded in a loop": "s = load_file(path)\nfor k, v in s.items():\n    setattr(self.net, k, v)\n",
}
DOES_NOT = {
    "settings": "saved = torch.load(path)\nfor k, v in saved.items():\n    setattr(args, k, v)\n",
    "of itself": "saved = torch.load(path)\nfor key in KEYS:\n    setattr(self, key, saved[key])\n",
    "nothing loaded": "for k, v in given.items():\n    setattr(model, k, v)\n",
    "other calls": "setattr(rows, name, to_list(getattr(rows, name)))\n",
    "a layer": "saved = torch.load(path)\nsetattr(model, name, Quantized(layer))\n",
    "commented out": "# setattr(net, key, to_device(value, device))\n",
}


@pytest.mark.parametrize("text", SWEEPS.values(), ids=SWEEPS)
def test_whatever_attributes_are_moved(text: str) -> None:
    assert says(text.encode(), "helpers.py", "sweeps")


@pytest.mark.parametrize("text", DOES_NOT.values(), ids=DOES_NOT)
def test_what_moves_no_attributes(text: str) -> None:
    assert not says(text.encode(), "helpers.py", "sweeps")


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("net.mean = mean\n", "places mean"),
        ("net.mean, net.std = found\n", "places mean"),
        ("self.mean = self.mean.to(device)\n", "places mean"),
        ("setattr(net, 'mean', mean)\n", "places mean"),
        ("for key in ('mean', 'std'):\n    setattr(net, key, saved[key])\n", "places mean"),
        ("net.__dict__.update(found)\nfound = dict(std=rows.std(0), mean=rows.mean(0))\n", "places mean"),
        ("class Own(nets.Net):\n    def __init__(self):\n        self.mean = nn.Parameter(x)\n", "registers Net mean"),
        ("class Own(Net):\n    def f(self):\n        self.register_buffer('mean', x)\n", "registers Net mean"),
        ("net.register_buffer('mean', x)\n", "registers Net mean"),
        ("loss.mean = 0.5\n", "resets Net mean"),
        ("class Own(Net):\n    def __init__(self, mean):\n        self.mean = mean\n", "resets Net mean"),
        ("class Own(Net):\n    mean = None\n", "resets Net mean"),
        ("class Own(Net):\n    @property\n    def mean(self):\n        return 1\n", "resets Net mean"),
    ],
)
def test_what_a_file_does(text: str, question: str) -> None:
    assert says(text.encode(), "train.py", question)


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("args.mean = mean\nself.mean = mean\nnet.mean = None\n", "places mean"),
        ("for key in ('low', 'high'):\n    setattr(net, key, saved[key])\n", "places mean"),
        ("setattr(args, key, value)\nrows['mean'] = 1\n", "places mean"),
        ("class Own(Other):\n    def f(self):\n        self.register_buffer('mean', x)\n", "registers Net mean"),
        (
            "class Own(Net):\n    low = 1\nclass A(Part):\n    def f(self):\n        self.register_buffer('mean', x)\n",
            "registers Net mean",
        ),
        ("class Net(Part):\n    pass\n\n\nnet.register_buffer('mean', x)\n", "registers Net mean"),
        ("class Own(Net):\n    def f(self):\n        self.mean = torch.ones(3)\n        mean = 1\n", "resets Net mean"),
        ("class Own(Net):\n    mean: torch.Tensor\n", "resets Net mean"),
        ("class Other:\n    def f(self, mean):\n        self.mean = mean\n", "resets Net mean"),
        ("loss.mean = loss.mean.cuda()\nloss.mean = None\ncfg.mean = 0.5\n", "resets Net mean"),
    ],
)
def test_what_a_file_does_not(text: str, question: str) -> None:
    assert not says(text.encode(), "train.py", question)


@pytest.mark.parametrize(
    ("text", "composed"),
    [
        ("tf = T.Compose([T.ToTensor(), Noise(0.1)])\n", True),
        ("tf = Compose([\n    Crop(size=(8, 8)),\n    nets.Noise(0.1),\n])\n", True),
        ("tf = T.Compose([T.ToTensor()])\nnet = Noise(0.1)\n", False),
        ("net = nn.Sequential(Noise(0.1))\n", False),
    ],
)
def test_what_is_a_step_of_transforms(text: str, composed: bool) -> None:
    assert says(text.encode(), "data.py", "composes Noise") is composed
