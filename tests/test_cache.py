import json
import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledgers import written

from devlint import cache
from devlint.cache import Cache, _seen_at, clear, generation, key
from devlint.config import Selection, Settings
from devlint.finding import Edit, Finding, Fix, Note, Span
from devlint.ledger import Fact, Pages, Seen
from devlint.state import state_at

FINDING = Finding(
    "discarded-move",
    "correctness",
    "error",
    "`x` is moved",
    Span(1, 2, 3, 4),
    (Note("here", Span(1, 1, 1, 2)), Note("there", Span(5, 1, 5, 2), "other.py")),
    Fix("assign", False, (Edit(Span(1, 2, 1, 2), "x = "),)),
)

spans = st.builds(Span, *[st.integers(1, 10**6)] * 4)
findings = st.builds(
    Finding,
    *[st.text()] * 4,
    spans,
    st.lists(st.builds(Note, st.text(), spans, st.none() | st.text())).map(tuple),
    st.none() | st.builds(Fix, st.text(), st.booleans(), st.lists(st.builds(Edit, spans, st.text())).map(tuple)),
)


class Says:
    """A project that says the same to every question."""

    def __init__(self, answer: str) -> None:
        self._answer = answer

    def answer(self, path: str, question: str) -> str:
        return self._answer

    def seen(self, paths: Iterable[str]) -> dict[str, Seen]:
        return {path: _seen_at(path) for path in paths}


def open_cache(folder: Path, notes: list[str] | None = None, pages: Pages | None = None) -> Cache:
    return Cache(str(folder / "c"), "g", (notes if notes is not None else []).append, None, pages)


def filled(folder: Path, **entries: list[Finding]) -> Path:
    """A saved cache; the file it lies in."""
    opened = open_cache(folder)
    for name, found in entries.items():
        opened.put(name, found)
    opened.save()
    return folder / "c" / "g.json"


def aged(path: Path, seconds: float = 100) -> os.stat_result:
    path.touch()
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))
    return path.stat()


def test_what_was_put_is_got_again_by_another_process(tmp_path: Path) -> None:
    filled(tmp_path, k=[FINDING], empty=[])
    again = open_cache(tmp_path)
    assert again.get("k") == [FINDING]
    assert again.get("empty") == []
    assert again.get("other") is None


@given(st.lists(findings, max_size=4))
def test_any_finding_survives_json(found: list[Finding]) -> None:
    data = json.loads(json.dumps([finding.to_data() for finding in found]))
    assert [Finding.from_data(each) for each in data] == found


def test_a_finding_that_rests_on_another_file_is_kept_only_while_that_says_the_same(tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    aged(other)
    opened = open_cache(tmp_path, pages=(pages := Pages()))
    fact = Fact(str(other), "names f", "def")
    opened.put("k", [FINDING], written(pages, [fact], {str(other): (state_at(str(other)), "")}))
    opened.save()
    assert open_cache(tmp_path).get("k") == [FINDING]
    other.write_text("changed")
    assert open_cache(tmp_path).get("k") is None
    same = Cache(str(tmp_path / "c"), "g", print, lambda: Says("def"))
    assert same.get("k") == [FINDING]


def test_the_key_changes_with_content_name_and_what_is_ignored_there() -> None:
    keys = {key(b"a", "a.py", ()), key(b"b", "a.py", ()), key(b"a", "b.py", ()), key(b"a", "a.py", ("ALL",))}
    assert len(keys) == 4
    assert key(b"a", "a.py", ()) in keys
    assert key(b"a", "\udcff.py", ())


def test_the_generation_changes_with_selection_version_and_own_files(monkeypatch: pytest.MonkeyPatch) -> None:
    first = generation(Settings())
    assert generation(Settings(jobs=3, unsafe_fixes=True, exclude=())) == first
    assert generation(Settings(select=("ALL",))) != first
    assert generation(Settings(command_line=Selection(ignore=("nursery",)))) != first
    with monkeypatch.context() as patch:
        patch.setattr(cache, "__version__", "999")
        assert generation(Settings()) != first
    files = cache._own_files()
    assert any(name == "devlint.rules/__init__.py" for name, _, _ in files)
    assert any(name == "devlint/engine.py" for name, _, _ in files)
    monkeypatch.setattr(cache, "_own_files", lambda: files[1:])
    assert generation(Settings()) != first


def test_an_unchanged_file_is_known_without_reading_it(tmp_path: Path) -> None:
    source = tmp_path / "a.py"
    stat = aged(source)
    opened = open_cache(tmp_path)
    opened.seen("a.py", stat, "k")
    opened.save()
    assert open_cache(tmp_path).key_of("a.py", source.stat()) == "k"
    assert open_cache(tmp_path).key_of("b.py", source.stat()) is None


def test_a_changed_file_is_not_mistaken_even_with_its_old_time_and_size(tmp_path: Path) -> None:
    source = tmp_path / "a.py"
    source.write_text("one")
    stat = aged(source)
    opened = open_cache(tmp_path)
    opened.seen("a.py", stat, "k")
    opened.save()
    source.write_text("two")
    os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert open_cache(tmp_path).key_of("a.py", source.stat()) is None


def test_a_file_written_just_now_is_read_again_next_time(tmp_path: Path) -> None:
    source = tmp_path / "a.py"
    source.touch()
    opened = open_cache(tmp_path)
    opened.seen("a.py", source.stat(), "k")
    opened.save()
    assert open_cache(tmp_path).key_of("a.py", source.stat()) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: b"",
        lambda raw: raw[:-1],
        lambda raw: b"x" + raw,
        lambda raw: raw.replace(b"moved", b"mived"),
        lambda raw: b"\xff" * 100,
        lambda raw: raw.replace(b"devlint g", b"devlint h", 1),
        lambda raw: b"[]\n[]",
    ],
)
def test_a_damaged_cache_is_a_miss_and_is_written_anew(tmp_path: Path, damage) -> None:
    path = filled(tmp_path, k=[FINDING])
    path.write_bytes(damage(path.read_bytes()))
    notes: list[str] = []
    opened = open_cache(tmp_path, notes)
    assert opened.get("k") is None
    assert "damaged" in notes[0]
    filled(tmp_path, other=[FINDING])
    assert open_cache(tmp_path).get("other") == [FINDING]


def test_what_was_cut_off_at_the_end_costs_only_itself(tmp_path: Path) -> None:
    path = filled(tmp_path, k=[FINDING])
    filled(tmp_path, other=[FINDING])
    path.write_bytes(path.read_bytes()[:-1])
    again = open_cache(tmp_path)
    assert (again.get("k"), again.get("other")) == ([FINDING], None)
    filled(tmp_path, third=[FINDING])
    again = open_cache(tmp_path)
    assert (again.get("k"), again.get("third")) == ([FINDING], [FINDING])


def test_a_run_that_learned_little_writes_little_and_all_becomes_one_block_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_MOST_BLOCKS", 3)
    path = filled(tmp_path, **{f"k{number}": [FINDING] for number in range(50)})
    counts = []
    for number in range(4):
        before = path.read_bytes()
        filled(tmp_path, **{f"n{number}": [FINDING]})
        counts.append(path.read_bytes().count(b"devlint g"))
        assert (counts[-1] == 1) != path.read_bytes().startswith(before)
    assert counts == [2, 3, 1, 2]
    again = open_cache(tmp_path)
    assert all(again.get(key) == [FINDING] for key in ("k0", "k49", "n0", "n3"))


def test_what_rests_on_a_file_as_it_was_before_is_not_taken_for_what_rests_on_it_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for most_blocks in (1, 10):  # all made into one, or not
        monkeypatch.setattr(cache, "_MOST_BLOCKS", most_blocks)
        other = tmp_path / f"other{most_blocks}.py"
        for name, answer in (("old", "def"), ("new", "class")):
            other.write_text(answer)
            os.utime(other, (1e9, 1e9))
            opened = Cache(str(tmp_path / "c"), "g", print, lambda: Says("class"), pages := Pages())
            fact = Fact(str(other), "names f", answer)
            opened.put(name, [FINDING], written(pages, [fact], {str(other): _seen_at(str(other))}))
            opened.save()
        again = Cache(str(tmp_path / "c"), "g", print, lambda: Says("class"))
        assert (again.get("old"), again.get("new")) == (None, [FINDING])


def test_facts_that_still_hold_are_about_the_file_as_it_is_once_all_is_one_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_MOST_BLOCKS", 1)
    other = tmp_path / "other.py"
    other.touch()
    opened = Cache(str(tmp_path / "c"), "g", print, lambda: Says("def"), pages := Pages())
    opened.put("k", [FINDING], written(pages, [Fact(str(other), "names f", "def")], {str(other): _seen_at(str(other))}))
    opened.save()
    other.write_text("# changed")
    os.utime(other, (1e9, 1e9))
    opened = Cache(str(tmp_path / "c"), "g", print, lambda: Says("def"))
    opened.put("n", [])
    opened.save()
    assert open_cache(tmp_path).get("k") == [FINDING]


def test_what_another_process_wrote_meanwhile_is_kept(tmp_path: Path) -> None:
    mine = open_cache(tmp_path)
    filled(tmp_path, theirs=[FINDING])
    mine.put("mine", [])
    mine.save()
    both = open_cache(tmp_path)
    assert (both.get("theirs"), both.get("mine")) == ([FINDING], [])


def test_a_run_that_learned_nothing_writes_nothing(tmp_path: Path) -> None:
    open_cache(tmp_path).save()
    assert not (tmp_path / "c").exists()


def test_a_folder_that_cannot_be_written_is_a_note(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("a file is in the way")
    notes: list[str] = []
    opened = open_cache(tmp_path, notes)
    opened.put("k", [])
    opened.save()
    assert any("cannot be written" in note for note in notes)
    assert (tmp_path / "c").read_text() == "a file is in the way"


def test_nothing_half_written_stays_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = filled(tmp_path, k=[FINDING])
    before = path.read_bytes()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cache, "_MOST_BLOCKS", 1)
    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        filled(tmp_path, other=[])
    assert path.read_bytes() == before
    assert sorted(p.name for p in path.parent.iterdir()) == [".gitignore", "CACHEDIR.TAG", "g.json"]


def test_size_is_bounded_and_the_newest_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_KEPT_FILES", 2)
    filled(tmp_path, a=[], b=[])
    filled(tmp_path, c=[])
    again = open_cache(tmp_path)
    assert [again.get(name) is not None for name in "abc"] == [False, True, True]


def test_old_generations_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_KEPT_GENERATIONS", 1)
    aged(filled(tmp_path, k=[]))
    newer = Cache(str(tmp_path / "c"), "newer", lambda note: None)
    newer.put("k", [])
    newer.save()
    assert [p.name for p in (tmp_path / "c").glob("*.json")] == ["newer.json"]


def test_the_folder_is_ignored_by_git_and_tagged_as_a_cache(tmp_path: Path) -> None:
    filled(tmp_path, k=[])
    assert (tmp_path / "c" / ".gitignore").read_text() == "*\n"
    assert (tmp_path / "c" / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")


def test_clear_removes_a_cache_and_nothing_else(tmp_path: Path) -> None:
    filled(tmp_path, k=[])
    (tmp_path / "c" / "mine.txt").touch()
    assert clear(str(tmp_path / "c"))
    assert [p.name for p in (tmp_path / "c").iterdir()] == ["mine.txt"]
    assert not clear(str(tmp_path / "c"))
    assert not clear(str(tmp_path / "none"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "CACHEDIR.TAG").write_text("another program's")
    assert not clear(str(tmp_path / "other"))
