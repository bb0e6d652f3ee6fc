"""Where downloaded weights come from, as far as the file says."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from devlint.rule import Rule

_ADDRESS = re.compile(r"https?://\S+")
#: What torchvision publishes, and where it was published before.
_OF_TORCH = re.compile(r"https?://(download\.pytorch\.org|s3\.amazonaws\.com/pytorch)\b")


def is_of_torch(rule: Rule) -> bool:
    """Whether the file has addresses of the weights that come with torch: ``model_urls = {"resnet18": ...}``."""
    return any(_OF_TORCH.match(address) for _, address in _addresses(rule))


def is_fetched_from_torch(rule: Rule, call: cst.Call) -> bool:
    """``if not path.exists(): download(f"https://download.pytorch.org/models/{name}", path)``, around a load."""
    function = rule.flow.function(call)
    return function is not None and any(
        _OF_TORCH.match(address) and rule.flow.function(node) is function for node, address in _addresses(rule)
    )


def has_address(rule: Rule) -> bool:
    """Whether the file says where weights come from."""
    return next(_addresses(rule), None) is not None


def _addresses(rule: Rule) -> Iterator[tuple[cst.CSTNode, str]]:
    if "http" not in rule.source.text:
        return
    for node in rule.source.nodes_of(cst.SimpleString):
        if "http" in node.value and _ADDRESS.fullmatch(text := str(node.evaluated_value)):
            yield node, text
    for part in rule.source.nodes_of(cst.FormattedStringText):
        if _ADDRESS.match(part.value):
            yield part, part.value
