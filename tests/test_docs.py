"""Rule documentation: read from rule files without importing them, checked, and laid out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent, indent

import pytest

from devlint import docs, rule
from devlint.finding import BUILT_IN, GROUPS
from devlint.rule import RuleError

DOCSTRING = dedent(
    """\
    A tensor is moved and the moved copy is thrown away.

    ## What it does
    Looks for statements that move a tensor and drop the result, which `Tensor.to` returns. This sentence is long.

    - `x.to(d)`
    - `x.cuda()`, which is the very same thing for all that matters here and goes on for longer than a line

    ## Why is this bad
    The tensor stays where it was.

    ## Example
    ```python
    # a comment
    def step(x, device):
        x.to(device)
    ```

    ## Use instead
    ```python
    def step(x, device):
        x = x.to(device)
    ```

    ## Fix safety
    Safe.

    ## Limits
    None | known.

    ## References
    - [Tensor.to](https://docs.pytorch.org/docs/stable/)
    """
)


def rule_file(docstring: str = DOCSTRING, *, name: str = "DiscardedMove", attributes: str = "") -> str:
    attributes = attributes or 'group = "correctness"\nfixable = "always"'
    return (
        "from __future__ import annotations\n\n"
        "import a_module_that_does_not_exist\n\n"
        "class Helper:\n    pass\n\n\n"
        f"class {name}(Rule):\n"
        f'    """{indent(docstring, "    ").lstrip()}    """\n\n'
        f"{indent(attributes, '    ')}\n\n"
        "    def visit_Expr(self, node):\n"
        '        """Not the documentation."""\n'
    )


@pytest.fixture
def rules_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes devlint find the given files, and no other rules."""

    def install(**files: str) -> Path:
        for stem, text in files.items():
            (tmp_path / f"{stem}.py").write_text(text, "utf-8")
        names = {stem.replace("_", "-"): str(tmp_path / f"{stem}.py") for stem in files}
        monkeypatch.setattr(rule, "rule_files", lambda: names)
        docs.rules.cache_clear()
        return tmp_path

    yield install
    docs.rules.cache_clear()


# what rules() reads -------------------------------------------------------------------------------


def test_rules_reads_name_group_fixable_and_summary_without_importing(rules_in):
    folder = rules_in(discarded_move=rule_file())
    found = docs.rules()
    assert found["discarded-move"] == docs.RuleInfo(
        "discarded-move",
        "correctness",
        "always",
        "A tensor is moved and the moved copy is thrown away.",
        str(folder / "discarded_move.py"),
    )
    assert (found["discarded-move"].level, found["discarded-move"].default) == ("error", True)


def test_rules_reads_annotated_attributes_and_takes_rules_for_unfixable_by_default(rules_in):
    rules_in(discarded_move=rule_file(attributes='group: ClassVar[str] = "nursery"'))
    info = docs.rules()["discarded-move"]
    assert (info.group, info.fixable, info.default) == ("nursery", "never", False)


def test_rules_holds_what_the_engine_reports_without_a_rule(rules_in):
    rules_in()
    assert {name: (info.group, info.level) for name, info in docs.rules().items()} == BUILT_IN
    assert {info.path for info in docs.rules().values()} == {None}


def test_every_group_has_a_promise():
    assert list(docs.PROMISES) == list(GROUPS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (rule_file(name="OtherName"), "rules/discarded_move.py must define a class DiscardedMove(Rule)"),
        ("x = 1\n", "rules/discarded_move.py must define a class DiscardedMove(Rule)"),
        ("\nclass DiscardedMove(Rule):\n    group = 'memory'\n", "discarded-move: the class must begin with its docu"),
        ('\nclass DiscardedMove(Rule):\n    x = 1\n    y = """s"""\n', "discarded-move: the class must begin with"),
        (rule_file(attributes='group = "nonsense"'), "discarded-move: group must be one of correctness, "),
        (rule_file(attributes='fixable = "never"'), "discarded-move: group must be one of correctness, "),
        (rule_file(attributes='group = "memory"\nfixable = True'), "discarded-move: fixable must be one of always, "),
        (rule_file(attributes="group = ="), "discarded-move: invalid syntax in rules/discarded_move.py"),
    ],
)
def test_rules_refuses_a_file_that_holds_no_documented_rule(rules_in, text, message):
    rules_in(discarded_move=text)
    with pytest.raises(RuleError) as refused:
        docs.rules()
    assert str(refused.value).startswith(message)


def test_reading_rules_imports_no_libcst():
    code = "import sys; from devlint import docs; docs.rules(); print('libcst' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


# sections -------------------------------------------------------------------------------------------


def test_sections_gives_each_heading_its_text_and_leaves_code_alone():
    found = docs.sections(DOCSTRING)
    assert list(found) == list(docs.SECTIONS)
    assert found["Why is this bad"] == "The tensor stays where it was."
    assert found["Example"].startswith("```python\n# a comment\n")


def test_sections_takes_away_the_indentation_of_the_class():
    indented = indent(DOCSTRING, "    ").lstrip()
    assert docs.sections(indented) == docs.sections(DOCSTRING)


@pytest.mark.parametrize(
    ("docstring", "message"),
    [
        ("", "the documentation must begin with a line that sums the rule up"),
        ("## Example\n", "the documentation must begin with a line that sums the rule up"),
        ("Sum.\n\nMore.\n\n## Limits\nx\n", "'More.' stands between the first line and the first heading"),
        ("Sum.\n\n## Exmaple\nx\n", "'## Exmaple' is no heading; they are ## What it does, "),
        ("Sum.\n\n# Example\nx\n", "'# Example' is no heading; they are "),
        ("Sum.\n\n## Limits\nx\n\n## Limits\ny\n", "there are two sections 'Limits'"),
        ("Sum.\n\n## Limits\nx\n\nExample\n-------\n", "headings are written `## Example`, not underlined"),
        ("Sum.\n\n## Example\n```python\nx\n", "a code fence is not closed"),
    ],
)
def test_sections_refuses_other_forms_and_names_the_rule(docstring, message):
    with pytest.raises(RuleError) as refused:
        docs.sections(docstring, "some-rule")
    assert str(refused.value).startswith(f"some-rule: {message}")


def without(heading: str) -> str:
    before, _, rest = DOCSTRING.partition(f"## {heading}\n")
    return before + (f"## {after}" if (after := rest.partition("\n## ")[2]) else "")


@pytest.mark.parametrize("heading", [heading for heading, needed in docs.SECTIONS.items() if needed])
def test_a_page_needs_its_sections(rules_in, heading):
    rules_in(discarded_move=rule_file(without(heading)))
    with pytest.raises(RuleError, match=f"discarded-move: the section `## {heading}` is missing"):
        docs.page("discarded-move")


def test_a_page_may_lack_references_and_without_fixes_their_safety(rules_in):
    rules_in(discarded_move=rule_file(without("References")))
    assert "References" not in docs.page("discarded-move")
    rules_in(discarded_move=rule_file(without("Fix safety"), attributes='group = "memory"'))
    assert "Fix safety" not in docs.page("discarded-move")


def test_an_example_must_be_python_in_fences(rules_in):
    rules_in(discarded_move=rule_file(DOCSTRING.replace("```python\n# a", "```\n# a")))
    with pytest.raises(RuleError, match="discarded-move: `## Example` must show code between ```python and ```"):
        docs.page("discarded-move")


def test_examples_gives_the_code_that_fires_and_the_code_that_does_not(rules_in):
    rules_in(discarded_move=rule_file())
    assert docs.examples("discarded-move") == (
        "# a comment\ndef step(x, device):\n    x.to(device)\n",
        "def step(x, device):\n    x = x.to(device)\n",
    )


def test_an_unknown_rule_is_refused():
    with pytest.raises(RuleError, match="no rule is called 'nonsense'"):
        docs.explain("nonsense", "text")


# pages ----------------------------------------------------------------------------------------------


def test_explain_lays_a_page_out_as_text(rules_in):
    rules_in(discarded_move=rule_file())
    assert docs.explain("discarded-move", "text") == dedent(
        """\
        discarded-move
        ==============

        A tensor is moved and the moved copy is thrown away.

        group    correctness: crashes, or computes garbage, once the device is an accelerator
        level    error
        default  on
        fix      always, with `--fix`; where unsafe, with `--fix --unsafe-fixes`

        What it does
          Looks for statements that move a tensor and drop the result, which `Tensor.to`
          returns. This sentence is long.

          - `x.to(d)`
          - `x.cuda()`, which is the very same thing for all that matters here and goes on for
            longer than a line

        Why is this bad
          The tensor stays where it was.

        Example
            # a comment
            def step(x, device):
                x.to(device)

        Use instead
            def step(x, device):
                x = x.to(device)

        Fix safety
          Safe.

        Limits
          None | known.

        References
          - Tensor.to <https://docs.pytorch.org/docs/stable/>
        """
    )


def test_explain_gives_markdown_with_the_sections_as_written(rules_in):
    rules_in(discarded_move=rule_file())
    text = docs.explain("discarded-move", "markdown")
    assert text.startswith(
        "# discarded-move\n\nA tensor is moved and the moved copy is thrown away.\n\n"
        "- **Group:** `correctness` (crashes, or computes garbage, once the device is an accelerator)\n"
        "- **Level:** error\n- **By default:** on\n"
        "- **Fix:** always, with `--fix`; where unsafe, with `--fix --unsafe-fixes`\n\n"
        "## What it does\n\n"
    )
    assert "\n\n## Use instead\n\n```python\ndef step(x, device):\n    x = x.to(device)\n```\n\n" in text


def test_explain_gives_json(rules_in):
    rules_in(discarded_move=rule_file())
    found = json.loads(docs.explain("discarded-move", "json"))
    assert found.pop("sections") == docs.sections(DOCSTRING)
    assert found == {
        "name": "discarded-move",
        "group": "correctness",
        "promise": "crashes, or computes garbage, once the device is an accelerator",
        "level": "error",
        "default": True,
        "fixable": "always",
        "summary": "A tensor is moved and the moved copy is thrown away.",
    }


def test_explain_all_holds_every_page(rules_in):
    rules_in(discarded_move=rule_file())
    names = ["discarded-move", "internal-error", "syntax-error", "tentative", "unused-ignore"]
    assert [entry["name"] for entry in json.loads(docs.explain_all("json"))] == names
    for fmt in ("text", "markdown"):
        text = docs.explain_all(fmt)
        assert all(docs.explain(name, fmt) in text for name in names)


def test_the_table_lists_rules_by_group_in_text(rules_in):
    rules_in(
        discarded_move=rule_file(),
        odd_thing=rule_file(name="OddThing", attributes='group = "nursery"\nfixable = "sometimes"'),
    )
    assert docs.table("text") == dedent(
        """\
        correctness: crashes, or computes garbage, once the device is an accelerator (error, on)
          discarded-move  [*]  A tensor is moved and the moved copy is thrown away.
          internal-error       devlint itself failed on a file.
          syntax-error         The file is not Python that devlint can read.

        suspicious: probably a fault; a person should look (warning, on)
          unused-ignore   [~]  A `# devlint: ignore[...]` comment silences nothing.

        nursery: being tried out (warning, off)
          odd-thing       [~]  A tensor is moved and the moved copy is thrown away.
          tentative            Findings of rules that are on, where what is known allows the fault and does not show it.

        [*] fixable, [~] sometimes fixable; `devlint explain RULE` says more
        """
    )


def test_the_table_escapes_what_markdown_would_take_for_a_column(rules_in):
    rules_in(discarded_move=rule_file("A | B is lost.\n" + DOCSTRING.partition("\n")[2]))
    assert "| `discarded-move` | correctness | error | on | always | A \\| B is lost. |\n" in docs.table("markdown")


def test_the_table_gives_json(rules_in):
    rules_in(discarded_move=rule_file())
    rows = json.loads(docs.table("json"))
    assert [row["name"] for row in rows] == [
        "discarded-move",
        "internal-error",
        "syntax-error",
        "unused-ignore",
        "tentative",
    ]
    assert "sections" not in rows[0]


# the real rules -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(rule.rule_files()))
def test_every_rule_is_fully_documented(name):
    assert docs.page(name)
    for code in docs.examples(name):
        compile(code, name, "exec")


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_built_in_is_documented(name):
    found = docs.page(name)
    assert found["What it does"] and found["Why is this bad"]


def test_what_docs_reads_is_what_importing_a_rule_gives():
    classes = rule.discover()
    read = {name: info for name, info in docs.rules().items() if info.path is not None}
    assert {name: (info.group, info.fixable) for name, info in read.items()} == {
        name: (kind.group, kind.fixable) for name, kind in classes.items()
    }
    for name, kind in classes.items():
        assert docs.page(name) == docs.sections(kind.__doc__ or "", name)
