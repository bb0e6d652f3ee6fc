"""The documentation of rules, read from their docstrings without importing them.

A rule's docstring is a line that sums it up, a blank line, and sections, each under a markdown heading::

    A tensor is moved and the moved copy is thrown away.

    ## What it does
    Looks for ...

    ## Example
    ```python
    x.to(device)
    ```

The sections are those of :data:`SECTIONS`, in any order. Code is in fences that say ``python``; ``Example`` and
``Use instead`` each begin theirs with one that shows the fault and its cure. Anything else in a docstring is an error.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from devlint import rule
from devlint.finding import DEFAULT_GROUPS, GROUPS
from devlint.rule import FIXABLE, RuleError

#: Section -> whether a rule must have it ("Fix safety" only where there are fixes).
SECTIONS = {
    "What it does": True,
    "Why is this bad": True,
    "Example": True,
    "Use instead": True,
    "Fix safety": True,
    "Limits": True,
    "References": False,
}

#: Group -> what its findings promise.
PROMISES = {
    "correctness": "crashes, or computes garbage, once the device is an accelerator",
    "suspicious": "probably a fault; a person should look",
    "performance": "the device waits, or bytes are copied, for nothing",
    "distributed": "wrong with more than one process",
    "memory": "device memory or autograd history is held by mistake, or time is measured wrong",
    "portability": "right on one kind of device only",
    "nursery": "being tried out",
}

DOC_FORMATS = ("text", "markdown", "json")

_FIXES = {
    "always": "always, with `--fix`; where unsafe, with `--fix --unsafe-fixes`",
    "sometimes": "sometimes, with `--fix`; where unsafe, with `--fix --unsafe-fixes`",
    "never": "never",
}


@dataclass(frozen=True)
class RuleInfo:
    """What a rule says of itself; ``path`` is its file, ``None`` for what devlint reports without a rule."""

    name: str
    group: str
    fixable: str
    summary: str
    path: str | None

    @property
    def level(self) -> str:
        return GROUPS[self.group]

    @property
    def default(self) -> bool:
        """Whether it runs when nothing is selected."""
        return self.group in DEFAULT_GROUPS


@lru_cache(maxsize=1)
def rules() -> dict[str, RuleInfo]:
    """Every rule by name, those built in too.

    Raises :class:`~devlint.rule.RuleError` for a rule file that does not hold a documented rule.
    """
    found = {name: _read(name, path)[0] for name, path in rule.rule_files().items()}
    for name, (group, fixable, docstring) in _BUILT_IN.items():
        found[name] = RuleInfo(name, group, fixable, _summary(docstring), None)
    return dict(sorted(found.items()))


def _read(name: str, path: str) -> tuple[RuleInfo, str]:
    """What the rule in a file says of itself, and its docstring.

    Every run needs the names and groups of all rules, so only the head of the class is parsed: its docstring and
    the attributes below.
    """
    stem = name.replace("-", "_")
    class_name = "".join(word.capitalize() for word in stem.split("_"))
    with open(path, encoding="utf-8") as file:
        text = file.read()
    header = text.find(f"\nclass {class_name}(")
    if header < 0:
        raise RuleError(f"rules/{stem}.py must define a class {class_name}(Rule)")
    start = text.find('"""', header)
    end = text.find('"""', start + 3)
    if start < 0 or end < 0 or not text[header:start].rstrip(" rR\n").endswith(":"):
        raise RuleError(f"{name}: the class must begin with its documentation, in triple double quotes")
    body = re.compile(r"^(?:    (?:def|async def|@)|\S)", re.MULTILINE).search(text, end + 3)
    head = text[header + 1 : body.start() if body else len(text)]
    try:
        definition = ast.parse(head).body[0]
    except SyntaxError as error:
        raise RuleError(f"{name}: {error.msg} in rules/{stem}.py") from error
    assert isinstance(definition, ast.ClassDef)
    values = {"fixable": "never", **_constants(definition)}
    for key, allowed in (("group", tuple(GROUPS)), ("fixable", FIXABLE)):
        if values.get(key) not in allowed:
            raise RuleError(f"{name}: {key} must be one of {', '.join(allowed)}")
    docstring = ast.get_docstring(definition, clean=False) or ""
    return RuleInfo(name, values["group"], values["fixable"], _summary(docstring), path), docstring


def _constants(definition: ast.ClassDef) -> dict[str, Any]:
    constants = {}
    for statement in definition.body:
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets, value = [statement.target], statement.value
        else:
            continue
        if isinstance(value, ast.Constant):
            constants.update({target.id: value.value for target in targets if isinstance(target, ast.Name)})
    return constants


def _summary(docstring: str) -> str:
    return docstring.strip().partition("\n")[0].strip()


# sections -------------------------------------------------------------------------------------------


def sections(docstring: str, name: str = "docstring") -> dict[str, str]:
    """Heading -> text of each section, in the order of :data:`SECTIONS`.

    Raises :class:`~devlint.rule.RuleError`, which begins with ``name``, where the docstring is not written as
    described above.
    """
    import inspect

    summary, _, rest = inspect.cleandoc(docstring).partition("\n")
    if not summary or summary.startswith("#"):
        raise RuleError(f"{name}: the documentation must begin with a line that sums the rule up")
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    fenced = False
    for line in rest.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and re.fullmatch(r"-{3,}|={3,}", line):
            raise RuleError(f"{name}: headings are written `## Example`, not underlined")
        elif not fenced and line.startswith("#"):
            heading = line.removeprefix("## ").rstrip()
            if heading not in SECTIONS or heading == line:
                raise RuleError(f"{name}: {line!r} is no heading; they are {', '.join(f'## {s}' for s in SECTIONS)}")
            if heading in found:
                raise RuleError(f"{name}: there are two sections {heading!r}")
            current = found[heading] = []
            continue
        if current is not None:
            current.append(line)
        elif line.strip():
            raise RuleError(f"{name}: {line!r} stands between the first line and the first heading")
    if fenced:
        raise RuleError(f"{name}: a code fence is not closed")
    return {heading: "\n".join(found[heading]).strip("\n") for heading in SECTIONS if heading in found}


def page(name: str) -> dict[str, str]:
    """The sections of a rule, checked to be complete; raises :class:`~devlint.rule.RuleError` where they are not."""
    info = _info(name)
    if info.path is None:
        return sections(_BUILT_IN[name][2], name)
    found = sections(_read(name, info.path)[1], name)
    for heading, needed in SECTIONS.items():
        if needed and not found.get(heading) and (heading != "Fix safety" or info.fixable != "never"):
            raise RuleError(f"{name}: the section `## {heading}` is missing")
    for heading in ("Example", "Use instead"):
        _first_code(name, heading, found[heading])
    return found


def examples(name: str) -> tuple[str, str]:
    """The code of ``Example``, which the rule reports, and of ``Use instead``, which it does not."""
    found = page(name)
    return _first_code(name, "Example", found.get("Example", "")), _first_code(
        name, "Use instead", found.get("Use instead", "")
    )


def _first_code(name: str, heading: str, text: str) -> str:
    fence = re.search(r"^```python\n(.*?\n)```$", text, re.MULTILINE | re.DOTALL)
    if fence is None:
        raise RuleError(f"{name}: `## {heading}` must show code between ```python and ```")
    return fence.group(1)


def _info(name: str) -> RuleInfo:
    try:
        return rules()[name]
    except KeyError:
        raise RuleError(f"no rule is called {name!r}") from None


# pages ----------------------------------------------------------------------------------------------


def explain(name: str, fmt: str) -> str:
    """The page of one rule, in one of :data:`DOC_FORMATS`."""
    if fmt == "json":
        import json

        return json.dumps(_as_object(name), indent=2) + "\n"
    return _markdown_page(name) if fmt == "markdown" else _text_page(name)


def explain_all(fmt: str) -> str:
    """The pages of all rules."""
    if fmt == "json":
        import json

        return json.dumps([_as_object(name) for name in rules()], indent=2) + "\n"
    separator = "\n" if fmt == "markdown" else "\n" + "-" * _WIDTH + "\n\n"
    return separator.join(explain(name, fmt) for name in rules())


def table(fmt: str) -> str:
    """All rules, one line each, by group."""
    by_group = {group: [info for info in rules().values() if info.group == group] for group in GROUPS}
    shown = {group: infos for group, infos in by_group.items() if infos}
    if fmt == "json":
        import json

        return json.dumps([_facts(info) for infos in shown.values() for info in infos], indent=2) + "\n"
    lines = []
    if fmt == "markdown":
        lines += ["| rule | group | level | default | fix | reports |", "|---|---|---|---|---|---|"]
        for info in (info for infos in shown.values() for info in infos):
            cells = (f"`{info.name}`", info.group, info.level, _on(info), info.fixable, info.summary)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        return "\n".join(lines) + "\n"
    width = max(len(name) for name in rules())
    for group, infos in shown.items():
        lines.append(f"{group}: {PROMISES[group]} ({GROUPS[group]}, {_on(infos[0])})")
        lines += [f"  {info.name:<{width}}  {_MARKS[info.fixable]}  {info.summary}" for info in infos]
        lines.append("")
    lines.append("[*] fixable, [~] sometimes fixable; `devlint explain RULE` says more")
    return "\n".join(lines) + "\n"


_WIDTH = 88
_LINK = re.compile(r"\[([^\]]+)\]\((https?:[^)\s]+)\)")
_MARKS = {"always": "[*]", "sometimes": "[~]", "never": "   "}


def _on(info: RuleInfo) -> str:
    return "on" if info.default else "off"


def _facts(info: RuleInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "group": info.group,
        "promise": PROMISES[info.group],
        "level": info.level,
        "default": info.default,
        "fixable": info.fixable,
        "summary": info.summary,
    }


def _as_object(name: str) -> dict[str, Any]:
    return {**_facts(_info(name)), "sections": page(name)}


def _markdown_page(name: str) -> str:
    info = _info(name)
    facts = [
        f"- **Group:** `{info.group}` ({PROMISES[info.group]})",
        f"- **Level:** {info.level}",
        f"- **By default:** {_on(info)}",
        f"- **Fix:** {_FIXES[info.fixable]}",
    ]
    parts = [f"# {name}", info.summary, "\n".join(facts)]
    parts += [f"## {heading}\n\n{text}" for heading, text in page(name).items()]
    return "\n\n".join(parts) + "\n"


def _text_page(name: str) -> str:
    info = _info(name)
    facts = {
        "group": f"{info.group}: {PROMISES[info.group]}",
        "level": info.level,
        "default": _on(info),
        "fix": _FIXES[info.fixable],
    }
    parts = [
        f"{name}\n{'=' * len(name)}",
        _laid_out(info.summary, ""),
        "\n".join(f"{k:<9}{v}" for k, v in facts.items()),
    ]
    parts += [f"{heading}\n{_laid_out(text, '  ')}" for heading, text in page(name).items()]
    return "\n\n".join(parts) + "\n"


def _laid_out(text: str, indent: str) -> str:
    """Markdown as plain text: paragraphs and list items filled, links written out, code indented further."""
    from textwrap import fill

    lines: list[str] = []
    paragraph: list[str] = []

    def flush() -> None:
        if paragraph:
            hanging = "  " if paragraph[0].startswith(("- ", "* ")) else ""
            joined = _LINK.sub(r"\1 <\2>", " ".join(line.strip() for line in paragraph))
            lines.append(
                fill(
                    joined,
                    _WIDTH,
                    initial_indent=indent,
                    subsequent_indent=indent + hanging,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
            )
            paragraph.clear()

    fenced = False
    for line in text.splitlines():
        if line.startswith("```"):
            flush()
            fenced = not fenced
        elif fenced:
            lines.append(f"{indent}  {line}".rstrip())
        elif not line.strip():
            flush()
            lines.append("")
        else:
            if line.startswith(("- ", "* ")):
                flush()
            paragraph.append(line)
    flush()
    return "\n".join(lines)


# what devlint reports without a rule -------------------------------------------------------------------

_BUILT_IN = {
    "syntax-error": (
        "correctness",
        "never",
        """The file is not Python that devlint can read.

        ## What it does
        Reports the place at which a file stops being Python: a mistake in the syntax, bytes that do not fit the
        encoding, an unknown encoding, or a null byte.

        ## Why is this bad
        No rule can look at such a file, so that its faults stay unseen. Python will not run it either, unless it is
        meant for a newer version than the one that devlint's parser knows.

        ## Example
        ```python
        def step(x, device:
            return x.to(device)
        ```

        ## Use instead
        ```python
        def step(x, device):
            return x.to(device)
        ```

        ## Limits
        Only the first place is reported. A file that names no framework and holds no `devlint:` comment is not
        parsed, so nothing is said of it.
        """,
    ),
    "unused-ignore": (
        "suspicious",
        "sometimes",
        """A `# devlint: ignore[...]` comment silences nothing.

        ## What it does
        Reports ignore comments, or single names in them, that match no finding, names that are no rule, and comments
        that begin with `devlint:` and cannot be understood.

        ## Why is this bad
        Such a comment says that there is a known fault where there is none, and it would hide the next one.

        ## Example
        ```python
        import torch

        n = torch.get_num_threads()  # devlint: ignore[discarded-move] moved by the caller
        ```

        ## Use instead
        ```python
        import torch

        n = torch.get_num_threads()
        ```

        ## Fix safety
        Safe: only the comment, or the name in it, is removed. What cannot be understood is left to you.

        ## Limits
        A comment for a rule that is not selected is left alone, for it may be needed when the rule runs.
        """,
    ),
    "internal-error": (
        "correctness",
        "never",
        """devlint itself failed on a file.

        ## What it does
        Reports that a rule or the analysis raised an exception, with its text and the place in devlint's own code.
        Other files are still checked.

        ## Why is this bad
        The file was not checked. This is always a fault of devlint and never of the file: please report it together
        with the file, or the smallest part of it that still fails.
        """,
    ),
    "tentative": (
        "nursery",
        "never",
        """Findings of rules that are on, where what is known allows the fault and does not show it.

        ## What it does
        It is no rule: select `tentative` beside rules, or the group `nursery`, or `ALL`, and these rules also report
        where the evidence is thin. `devlint explain` says under "Limits" of a rule what it holds back otherwise. Such
        a finding carries the name of its rule and the group `nursery`.

        Of any rule, these are tentative: findings in a package's function, class or method that nothing else in the
        project names (code, notebooks, configurations and documents are searched; tests, scripts and what a decorator
        may register are not asked), or in a file that imports several files of its package that are not there. And
        findings of rules for which new tensors are on the host, where a file of the project sets another default
        device or tensor type. So are findings in code that fails on any device before it gets there: since it reads a
        name that nothing in its file binds, or an attribute that nothing in the project sets or whose only assignment
        is commented out, or asks whether a device equals a string. Findings of rules that speak of nothing but what is
        on a device are, where neither the file nor one that imports it, directly or in turn, brings anything to a
        device (`net.cuda()`, `x.to(args.device)`, `Trainer(...)`). In tests, findings of what ends a run on a device
        are tentative, too: a test that stands does not have that fault, or never runs there (8 of 31 were true).

        ## Why is this bad
        On repositories that devlint had not been tuned for, these findings were right too seldom to be shown to
        everybody. In code of your own, where you know who calls what, they can be worth a look.
        """,
    ),
}
