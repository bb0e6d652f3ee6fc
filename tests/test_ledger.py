"""What findings rest on is written down once a process, sent once, and still there for each of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledgers import written

from devlint.cache import Cache
from devlint.ledger import Basis, Fact, Ledger, Page, Pages, Seen

numbers = st.integers(0, 7)


def nothing_seen(paths: Iterable[str]) -> dict[str, Seen]:
    return dict.fromkeys(paths, (None, ""))


def below(entries: Mapping[int, Fact | tuple[int, ...]], found: Collection[int]) -> set[Fact]:
    facts: set[Fact] = set()
    for number in found:
        entry = entries[number]
        facts |= {entry} if isinstance(entry, Fact) else below(entries, entry)
    return facts


def flat(parts: Iterable[Fact | Basis]) -> set[Fact]:
    return {fact for part in parts for fact in (flat(part.parts) if isinstance(part, Basis) else {part})}


@given(st.lists(st.tuples(st.frozensets(numbers), st.frozensets(numbers)), max_size=12), st.integers(1, 4))
def test_each_rests_on_the_same_facts_after_the_pages_were_put_together(
    made: list[tuple[frozenset[int], frozenset[int]]], every: int
) -> None:
    bases: list[Basis] = []
    ledger, pages, sent = Ledger(), Pages(), []
    for count, (facts, others) in enumerate(made):
        parts = {Fact(f"{number}.py", "stars", "") for number in facts} | {bases[n] for n in others if n < len(bases)}
        bases.append(Basis(frozenset(parts)))
        sent.append((ledger.rests([bases[-1]]), flat(parts)))
        if count % every == 0:
            pages.add(ledger.new_page(nothing_seen))
    pages.add(ledger.new_page(nothing_seen))
    entries = dict(pages.entries(ledger.name))
    assert len(entries) == len(ledger.entries)
    for rests, facts_there in sent:
        assert below(entries, rests.numbers) == facts_there


def test_what_was_sent_is_not_sent_again() -> None:
    ledger = Ledger()
    deep = Basis(frozenset({Fact("a.py", "names f", "def")}))
    ledger.rests([deep])
    assert len(ledger.new_page(nothing_seen).entries) == 2
    again = ledger.rests([deep, Basis(frozenset({Fact("a.py", "names f", "def")}))])
    assert ledger.new_page(nothing_seen).entries == ()
    assert len(again.numbers) == 1


def test_a_page_tells_how_the_files_it_is_about_were_read() -> None:
    ledger = Ledger()
    ledger.rests([Fact("a.py", "names f", "def"), Basis(frozenset({Fact("b.py", "stars", "")}))])
    assert sorted(ledger.new_page(nothing_seen).seen) == ["a.py", "b.py"]


def test_findings_are_not_kept_where_a_page_of_what_they_rest_on_is_missing(tmp_path) -> None:
    ledger, pages = Ledger(), Pages()
    cache = Cache(str(tmp_path), "g", pytest.fail, None, pages)
    ledger.rests([Fact("a.py", "names f", "def")])
    ledger.new_page(nothing_seen)  # lost with the process that it was sent from
    lost = ledger.rests([Basis(frozenset({Fact("a.py", "names f", "def")}))])
    cache.put("lost", [], lost)
    cache.put("sure", [], ledger.rests([Fact("b.py", "stars", "")]))
    pages.add(ledger.new_page(nothing_seen))
    cache.save()
    again = Cache(str(tmp_path), "g", pytest.fail)
    assert ("lost" in again, "sure" in again) == (False, True)


def test_pages_of_two_processes_do_not_mix(tmp_path) -> None:
    pages = Pages()
    cache = Cache(str(tmp_path), "g", pytest.fail, None, pages)
    for name in ("one", "other"):
        cache.put(name, [], written(pages, [Fact(f"{name}.py", "stars", name)], {f"{name}.py": ([0], name)}))
    cache.save()
    asked: list[tuple[str, str]] = []

    class Around:
        def answer(self, path: str, question: str) -> str:
            asked.append((path, question))
            return "one"

        def seen(self, paths: Iterable[str]) -> dict[str, Seen]:
            return nothing_seen(paths)

    again = Cache(str(tmp_path), "g", pytest.fail, Around)
    assert (again.get("one"), again.get("other")) == ([], None)
    assert sorted(asked) == [("one.py", "stars"), ("other.py", "stars")]


def test_an_empty_page_is_nothing() -> None:
    pages = Pages()
    pages.add(Page("x", 0, (), {}))
    assert pages.entries("x") == []
