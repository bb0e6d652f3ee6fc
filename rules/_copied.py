"""Code that is kept like that of another project, line by line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from itertools import pairwise

import libcst as cst

from devlint import tree
from devlint.flow.names import dotted
from devlint.mentions import ANYBODY, authors
from devlint.rule import Rule
from devlint.rules._switches import tests_above
from devlint.testcode import near

#: `# Copied from transformers.models.bart`, `# mainly adapted and cut down from https://...`
_COPIED = re.compile(
    r"#\W*(\w+\W+){0,3}(copied|copy|taken|adapted|borrowed|modified|ported|vendored|transcribed|reproduced)"
    r"( \w+){0,3} from\b",
    re.IGNORECASE,
)
#: `# original code from: other/net.py`, `# This module is from [Other](https://...)`
_FROM = re.compile(r"#\W*(\w+\W+){0,3}(code|module|file|model|implementation)( is| was| comes)? from\b", re.IGNORECASE)
#: A place in another repository, but for a thread that one reads there.
_ELSEWHERE = re.compile(
    r"https?://(?:www\.)?(?:github\.com|raw\.githubusercontent\.com|huggingface\.co|gitlab\.com)/[\w.-]+/([\w.-]+)"
    r"(?!\S*/(?:issues|pull)/)"
)
#: `# docs and results are at https://docs.other.dev/nets`
_DOCUMENTED = re.compile(r"#.*\b(?:docs|documentation|documented)\b[^:]*\bat:?\s+https?://([\w.-]+)", re.IGNORECASE)
#: Packages that many projects hold a copy of, some of them inside of their own.
_WELL_KNOWN = frozenset(
    "apex basicsr cosyvoice detectron2 diffusers dnnlib espnet facexlib fairseq funasr gfpgan groundingdino"
    " k_diffusion lavis ldm llava maskrcnn_benchmark mmaction mmcls mmcv mmdet mmdet3d mmocr mmpose mmseg open_clip"
    " pcdet pytracking realesrgan segment_anything sgm speechbrain taming timm torch_utils transformers trlx"
    " ultralytics".split()
)
#: Those of them whose names others give to parts of their own: `net/models/transformers`.
_ALSO_COMMON = frozenset({"apex", "diffusers", "ldm", "sgm", "speechbrain", "taming", "timm", "transformers"})
#: Folders of what others wrote.
_OF_OTHERS = re.compile(
    r"(^|/)(extern|externals?|third[_-]?party|3rdparty|vendor|vendored|submodules|repositories|repos(_\w+)?)/"
)
#: What the archive of a branch unpacks to: `Other-master/net/model.py`.
_UNPACKED = re.compile(r"(^|/)[\w.-]+-(master|main)(_[^/]*)?/")
#: What a package holds: `mmocr.models.layers.Encoding`.
_QUALIFIED = re.compile(r"[a-z]\w*(?:\.\w+){2,}")
_WITH_LINES = (cst.SimpleStatementLine, cst.FunctionDef, cst.ClassDef, cst.If, cst.For, cst.While, cst.With, cst.Try)
_OF_MOVING = re.compile(r"\b(device|gpu|cuda|move|copy)\b", re.IGNORECASE)
_ON_PURPOSE = re.compile(
    r"\b(ensures?|make sure|makes sure|in case|might|may|otherwise|instead|because|since|so that|without|different)\b",
    re.IGNORECASE,
)
_REGION = re.compile(r"#\s*region\s+(\w+)", re.IGNORECASE)


def is_copied(rule: Rule, node: cst.CSTNode) -> bool:
    """Whether what is changed there comes back, or is lost on the way: one keeps such code as its model has it."""
    definitions = list(rule.source.definitions(node))
    names = {each.name.value for each in definitions}
    return (
        is_of_others(rule)
        or any(_is_marked(rule, each) or _takes_a_place(rule, each) for each in definitions)
        or _names_another(rule)
        or any(_speaks_of(rule, text, names) for text in _comments(rule.source.module.header))
        or _is_in_copied_part(rule, node, names)
    )


def is_of_others(rule: Rule) -> bool:
    """Whether the file is of a package that others wrote, and that the project holds a copy of."""
    project = rule.flow.project
    place = project.in_repository() if project is not None else ""
    if _OF_OTHERS.search(place.replace(os.sep, "/").lower() or "/".join(near(rule.source.path))) is not None:
        return True
    if project is None:
        return False
    inside = project.in_project()
    # the checkout itself may be unpacked from such an archive: where its root is not known, nothing is told from that
    if not os.path.isabs(inside) and _UNPACKED.search(inside):
        return True
    # net/ beside funasr_detach/models/search.py, in a project that is not called `funasr`
    known = _well_known(project.packages())
    return (known is not None and not project.is_called(known)) or project.is_of_inner_distribution()


def _well_known(packages: list[str]) -> str | None:
    """The package that everybody knows of which a copy is among these, the outermost first."""
    if not packages:
        return None
    outermost = f"_{packages[0].lower()}_"  # my_diffusers, funasr_detach
    plugs_in = "plugin" in outermost  # mmdet3d_plugin goes with the package
    whole = (name for name in _WELL_KNOWN if f"_{name}_" in outermost and not plugs_in)
    parts = (name for name in packages[1:] if name in _WELL_KNOWN - _ALSO_COMMON)  # net/detection/mmdet/ops
    return next(whole, None) or next(parts, None)


def _is_marked(rule: Rule, definition: cst.FunctionDef | cst.ClassDef) -> bool:
    """Whether a remark above it, or above a method of it, says so: a check of the project may undo what is changed."""
    # Copied from transformers.models.bart.modeling_bart.shift
    if any(_COPIED.match(text) for text in _above(definition)):
        return True
    if not isinstance(definition, cst.ClassDef):
        return False
    methods = [each for each in definition.body.body if isinstance(each, cst.FunctionDef)]
    return any(
        _speaks_of(rule, text, {definition.name.value, method.name.value})
        for method in methods
        for text in _above(method)
    )


def _above(definition: cst.FunctionDef | cst.ClassDef) -> list[str]:
    """The comments right above a definition, and among its decorators."""
    lines = [*definition.leading_lines]
    while any(line.comment is None for line in lines):
        lines.pop(0)  # a blank line parts them from what is above
    lines += definition.lines_after_decorators
    return _comments([*lines, *(line for each in definition.decorators for line in each.leading_lines)])


def _comments(lines: Iterable[cst.EmptyLine]) -> list[str]:
    return [line.comment.value for line in lines if line.comment is not None]


def _speaks_of(rule: Rule, text: str, names: set[str]) -> bool:
    """Whether a remark says that it was copied, and names nothing of the file, or one of these."""
    # at the head of a file:  # `rotate` was copied from torchtune
    if not _COPIED.match(text):
        return False
    scope = rule.flow.scope
    known = {each.name.value for each in scope.functions} | {each.name.value for each in scope.classes}
    named = known & set(re.findall(r"\w+", text))
    return not named or bool(named & names)


def _names_another(rule: Rule) -> bool:
    """Whether what stands above a file's code says where that is from, or names a place in another repository."""
    head = rule.source.head
    own = {_letters(name) for name in near(rule.source.path)}
    return (
        any(_FROM.match(line) for line in head.splitlines())
        or any(_letters(name.removesuffix(".git")) not in own for name in _ELSEWHERE.findall(head))
        or any(_own_names(rule).isdisjoint(map(_letters, host.split("."))) for host in _DOCUMENTED.findall(head))
    )


def is_by_others(rule: Rule) -> bool:
    """Whether a file's head says that it is somebody's work, and its packages say that they are others'."""
    # Copyright (c) 2021 Acme, Inc.   in a package whose `__init__.py` says `Copyright (c) 2023 Umbrella`
    named = authors(rule.source.head) - {ANYBODY}
    own = {_letters(name) for name in near(rule.source.path)}
    view = rule.flow.project
    return bool(named) and view is not None and not named & own and view.credits_only_others(sorted(named))


def says_why(rule: Rule, node: cst.CSTNode) -> bool:
    """Whether the comment above a statement says why something is moved, or copied, there."""
    # a copy for this device, without touching the table itself
    line = rule.enclosing(node, *_WITH_LINES)
    texts = " ".join(_comments(line.leading_lines)) if line is not None else ""
    return _OF_MOVING.search(texts) is not None and _ON_PURPOSE.search(texts) is not None


def _letters(name: str) -> str:
    return re.sub(r"\W|_", "", name).lower()


def _is_in_copied_part(rule: Rule, node: cst.CSTNode, names: set[str]) -> bool:
    """Whether the last remark that stands by itself above a node, outside of definitions, says so of all below it."""
    # copied from the script for inference
    #
    # region Diffusers   ...   # endregion
    top, last = node, ""
    while (above := rule.parent(top)) is not None and not isinstance(above, cst.Module):
        top = above
    for statement in rule.source.module.body:
        lines = statement.leading_lines if isinstance(statement, _WITH_LINES) else ()
        alone = [line.comment.value for line, after in pairwise(lines) if line.comment and not after.comment]
        last = alone[-1] if alone else last
        if statement is top:
            break
    region = _REGION.match(last)
    packages = {name.partition(".")[0].lower() for name in rule.flow.scope.imports.values()}
    return _speaks_of(rule, last, names) or (region is not None and region[1].lower() in packages)


def _takes_a_place(rule: Rule, definition: cst.FunctionDef | cst.ClassDef) -> bool:
    """`transformers.models.llama.modeling_llama.Rotary = Rotary2`: it stands in for the code of another package.

    `@REWRITES.register("mmocr.models.layers.Encoding")` does, too.
    """
    name, imports = definition.name.value, rule.flow.scope.imports
    told = [text for text in _told(definition) if _QUALIFIED.fullmatch(text)]
    if any(_letters(text.partition(".")[0]) not in _own_names(rule) for text in told):
        return True
    return any(
        dotted(assign.value) == name
        and any(
            isinstance(each.target, cst.Attribute) and dotted(each.target).partition(".")[0] in imports
            for each in assign.targets
        )
        for assign in rule.source.nodes_of(cst.Assign)
    )


def _told(definition: cst.FunctionDef | cst.ClassDef) -> list[str]:
    """The strings that the decorators of a definition are called with."""
    calls = [each.decorator for each in definition.decorators if isinstance(each.decorator, cst.Call)]
    strings = [arg.value for call in calls for arg in call.args if isinstance(arg.value, cst.SimpleString)]
    return [text for each in strings if isinstance(text := each.evaluated_value, str)]


def _own_names(rule: Rule) -> set[str]:
    """The names of a file and of all folders above it, which may be those of its project and package."""
    path = os.path.abspath(rule.source.path).replace("\\", "/")
    return {_letters(name.removesuffix(".py")) for name in path.split("/")}


def refills(rule: Rule, node: cst.CSTNode) -> bool:
    """Whether a node stands in a branch that fills anew what the module keeps, once that is too small."""
    # if length > self.longest: self.longest = length; self.register_buffer("table", torch.cat((t, t)).to(x.device))
    for test, branch, holds in tests_above(rule, node):
        asked = {dotted(n) for n in tree.walk(test) if isinstance(n, cst.Attribute)}
        bound = {dotted(n.target) for n in tree.walk(branch) if isinstance(n, cst.AssignTarget)}
        if holds and any(path.startswith("self.") for path in asked & bound):
            return True
    return False
