"""What findings rest on, as other processes would have written it down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from devlint.ledger import Basis, Fact, Ledger, Pages, Rests, Seen


def written(pages: Pages, facts: Iterable[Fact], seen: Mapping[str, Seen]) -> Rests:
    """What findings of a process of its own rest on, the page with it added to ``pages``."""
    ledger = Ledger()
    rests = ledger.rests(facts)
    pages.add(ledger.new_page(lambda _: seen))
    return rests


def facts_of(parts: Iterable[Fact | Basis]) -> set[Fact]:
    """All facts that bases rest on, however deep."""
    ledger = Ledger()
    ledger.rests(parts)
    return {entry for entry in ledger.entries if isinstance(entry, Fact)}
