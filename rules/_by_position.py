"""A device that is handed by its place in the call, where torch takes sizes, values or a flag at that place."""

from __future__ import annotations

import re

import libcst as cst

from devlint.flow.hypothesis import names_device
from devlint.flow.names import dotted
from devlint.flow.value import DEVICE, TENSOR, THING, UNKNOWN_KIND
from devlint.rule import Rule
from devlint.rules._errors import is_expected
from devlint.rules._moves import short


def report_by_position(rule: Rule, call: cst.Call) -> None:
    """``torch.zeros(3, 4, device)``, ``torch.tensor(rows, self.device)``, ``x.new_zeros(3, "cuda")``; and
    ``nn.Linear(3, 4, device)``, where the third is whether there is a bias."""
    name = rule.flow.name_of(call)
    if not (name in _MAKE or name in _LAYERS or _is_new(rule, call, name)) or is_expected(rule, call):
        return
    for place, arg in enumerate(call.args):
        # torch.empty(*shape, device)  counts no less, but nn.Linear(*sizes, device) may
        if arg.star and name in _LAYERS:
            return
        if place == 0 or arg.star or arg.keyword is not None or not _is_device(rule, arg.value):
            continue
        word, code = short(rule.code(call.func)), short(rule.code(arg.value))
        if name not in _LAYERS:
            edit = rule.insert_before(arg.value, "device=")
            others = call.args[place + 1 :]
            fix = rule.fix("say `device=`", edit, safe=True) if all(each.keyword for each in others) else None
            said = f"`{word}` takes no device by position: `{code}` is refused"
            rule.report(arg.value, said, fix=fix, tentative=True)
        elif place < len(_LAYERS[name]):
            said = f"`{word}` takes `{code}` for its `{_LAYERS[name][place]}`: say `device=`"
            rule.report(arg.value, said, tentative=True)
        return


def _is_new(rule: Rule, call: cst.Call, name: str) -> bool:
    """``x.new_zeros(3, device)``"""
    if name or not isinstance(call.func, cst.Attribute) or call.func.attr.value not in _NEW:
        return False
    return rule.flow.value(call.func.value).kind in (TENSOR, THING, UNKNOWN_KIND)


def _is_device(rule: Rule, node: cst.BaseExpression) -> bool:
    value = rule.flow.value(node)
    if isinstance(node, cst.SimpleString):
        return _NAME.fullmatch(str(node.evaluated_value)) is not None
    if value.is_device_object:
        return True
    last = dotted(node).rpartition(".")[2]
    # torch.zeros(n, devices), torch.zeros(n, device_count)  are numbers; `num_devices` is, too
    return value.kind in (DEVICE, UNKNOWN_KIND) and last.endswith("device") and names_device(last)


_NAME = re.compile(r"(cuda|cpu|mps|xpu|meta)(:\d+)?")
_NEW = frozenset({"new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"})
#: What makes tensors; each takes `device` as a keyword alone (torch 2.13).
_MAKE = frozenset(
    f"torch.{name}"
    for name in (
        "arange as_tensor asarray empty empty_like eye full full_like linspace logspace ones ones_like rand rand_like "
        "randint randint_like randn randn_like randperm tensor zeros zeros_like"
    ).split()
)
#: What layers take at the places before that of `device`.
_LAYERS = {
    "torch.nn.Linear": ("in_features", "out_features", "bias"),
    "torch.nn.LayerNorm": ("normalized_shape", "eps", "elementwise_affine", "bias"),
    "torch.nn.Embedding": ("num_embeddings", "embedding_dim", "padding_idx", "max_norm", "norm_type"),
    "torch.nn.Conv1d": ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups"),
    "torch.nn.Conv2d": ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups"),
    "torch.nn.BatchNorm1d": ("num_features", "eps", "momentum", "affine", "track_running_stats"),
    "torch.nn.BatchNorm2d": ("num_features", "eps", "momentum", "affine", "track_running_stats"),
    "torch.nn.MultiheadAttention": ("embed_dim", "num_heads", "dropout", "bias", "add_bias_kv", "add_zero_attn"),
}
