"""The outer loop: files, cache, workers, and what came of each file.

Workers only compute. Whatever is written is written here, in the one process that a person can interrupt.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from devlint import engine
from devlint.cache import Cache, folder_for, generation, key
from devlint.config import Settings
from devlint.files import File, unreadable
from devlint.finding import INTERNAL_ERROR, Finding
from devlint.ledger import Pages

if TYPE_CHECKING:
    from devlint.index import ProjectIndex
    from devlint.ledger import Page, Rests

# Below this many bytes a pool costs more than it saves.
_SERIAL_BYTES = 150_000
_CHUNK_BYTES = 65_536
# To look up fewer files in the cache takes no longer than to start a process.
_MANY_STORED = 200

#: Called with the number of files and of bytes to check; gives what to call for each file done.
Progress = Callable[[int, int], AbstractContextManager[Callable[[], None]]]


@dataclass(frozen=True)
class Plan:
    """What to do with each file: ``check``, ``fix`` it, or ``ignore`` its findings by comments.

    ``write`` puts the new content into the file; ``unsafe`` overrides the setting ``unsafe-fixes``.
    """

    action: str = "check"
    write: bool = True
    unsafe: bool | None = None
    use_cache: bool = True
    jobs: int | None = None

    def applies(self, finding: Finding, settings: Settings) -> bool:
        """Whether the action would do something about the finding."""
        if self.action == "fix":
            return finding.fix is not None and (finding.fix.safe or self.allows_unsafe(settings))
        return self.action == "ignore"

    def allows_unsafe(self, settings: Settings) -> bool:
        return settings.unsafe_fixes if self.unsafe is None else self.unsafe


@dataclass(frozen=True)
class Change:
    """New content for a file."""

    file: File
    before: bytes
    after: bytes


@dataclass
class Outcome:
    """What a run found and did. ``problems`` are what could not be done, ``notes`` are for ``--verbose``; ``held`` is
    how many tentative findings were held back without anybody's saying so."""

    findings: list[tuple[File, Finding]] = field(default_factory=list)
    applied: list[tuple[File, Finding]] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    checked: int = 0
    held: int = 0

    def add_held(self, file: File, held: int) -> None:
        if held and file.settings.offers_tentative(file.path):
            self.held += held

    def add_seconds(self, seconds: dict[str, float]) -> None:
        for phase, spent in seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + spent


@dataclass
class _Done:
    """What came of one file, as it travels from a worker."""

    file: File
    key: str = ""
    stat: os.stat_result | None = None
    before: bytes = b""
    after: bytes = b""
    findings: list[Finding] = field(default_factory=list)
    applied: tuple[Finding, ...] = ()
    refused: tuple[str, ...] = ()
    held: int = 0
    rests: Rests | None = None
    page: Page | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    problem: str | None = None
    cacheable: bool = False


def run(files: list[File], plan: Plan, progress: Progress | None = None) -> Outcome:
    """Check, fix or annotate all files. Raises :class:`devlint.rule.RuleError` where the rules cannot be loaded."""
    outcome = Outcome()
    clock = time.perf_counter()
    results: dict[str, list[Finding]] = {}
    caches = _Caches(plan, outcome)
    ahead = _Ahead(plan)
    try:
        with engine.collector_off():  # all that is read stays, and would be looked through again and again
            pending = _from_cache(files, plan, caches, results, outcome, ahead)
        outcome.seconds["cache"] = time.perf_counter() - clock
        if pending:
            total = sum(size for _, size in pending)
            with (progress or _no_progress)(len(pending), total) as step:
                for done in _process_all(pending, plan, ahead):
                    _settle(done, plan, caches, results, outcome)
                    step()
    finally:  # what an interrupted run has found is worth keeping
        ahead.stop()
        clock = time.perf_counter()
        caches.save()
        outcome.seconds["cache"] = outcome.seconds.get("cache", 0.0) + time.perf_counter() - clock
    outcome.checked = len(results)
    outcome.findings = [(file, finding) for file in files for finding in results.get(file.path, ())]
    return outcome


def run_text(raw: bytes, file: File, plan: Plan) -> Outcome:
    """The same for content that is in no file; nothing is cached or written."""
    outcome = Outcome()
    results: dict[str, list[Finding]] = {}
    _load_rules()
    done = _process(_Done(file, before=raw, after=raw), plan, _new_index())
    without = Plan(plan.action, False, plan.unsafe, False)
    _settle(done, without, _Caches(without, outcome), results, outcome)
    outcome.checked = len(results)
    outcome.findings = [(file, finding) for finding in results.get(file.path, ())]
    return outcome


def _no_progress(_files: int, _bytes: int) -> AbstractContextManager[Callable[[], None]]:
    return nullcontext(lambda: None)


# the cache ------------------------------------------------------------------------------------------


class _Caches:
    """The caches in play, one for each configuration."""

    def __init__(self, plan: Plan, outcome: Outcome) -> None:
        self._on, self._outcome = plan.use_cache, outcome
        self.pages = Pages()
        self._open: dict[Settings, Cache] = {}
        self._index: ProjectIndex | None = None

    def get(self, settings: Settings) -> Cache | None:
        if not self._on:
            return None
        if settings not in self._open:
            folder = folder_for(settings)
            self._outcome.notes.append(f"cache: {folder}")
            self._open[settings] = Cache(
                folder, generation(settings), self._outcome.notes.append, self._project, self.pages
            )
        return self._open[settings]

    def _project(self) -> ProjectIndex:
        if self._index is None:
            self._index = _new_index()
        return self._index

    def save(self) -> None:
        for cache in self._open.values():
            cache.save()


def _from_cache(
    files: list[File],
    plan: Plan,
    caches: _Caches,
    results: dict[str, list[Finding]],
    outcome: Outcome,
    ahead: _Ahead,
) -> list[tuple[File, int]]:
    """Fill in what is known; what is left to do, with sizes.

    New content is told from the rest by states and digests, in no time: ``ahead`` begins with it while it is found out
    whether all that is stored still holds.
    """
    pending: list[tuple[File, int]] = []
    stored: list[tuple[File, int, Cache, str]] = []
    for file in files:
        cache = caches.get(file.settings)
        try:
            stat = os.stat(file.path)
            content = _content(file, stat, cache) if cache is not None else None
        except OSError as error:
            outcome.problems.append(unreadable(file.name, error))
            continue
        if cache is None or content is None:
            pending.append((file, stat.st_size))
        else:
            stored.append((file, stat.st_size, cache, content))
    if len(stored) >= _MANY_STORED:
        ahead.begin(pending)
    for file, size, cache, content in stored:
        findings = cache.get(content)
        if findings is None or any(plan.applies(finding, file.settings) for finding in findings):
            pending.append((file, size))
        else:
            results[file.path] = findings
            outcome.add_held(file, cache.held(content))
    outcome.notes.append(f"files: {len(files)}, {len(results)} from the cache")
    return pending


def _content(file: File, stat: os.stat_result, cache: Cache) -> str | None:
    """The key of a file's content, where something is stored under it. Raises ``OSError``."""
    known = cache.key_of(file.name, stat)
    if known is not None:
        return known
    stat, raw = _read(file.path)
    content = key(raw, file.name, file.settings.ignored_for(file.path))
    if content not in cache:
        if engine.relevant(raw):
            return None
        cache.put(content, [])
    cache.seen(file.name, stat, content)
    return content


def _read(path: str) -> tuple[os.stat_result, bytes]:
    with open(path, "rb") as source:
        return os.fstat(source.fileno()), source.read()


# one file -------------------------------------------------------------------------------------------


def _new_index() -> ProjectIndex:
    from devlint.index import ProjectIndex

    return ProjectIndex()


def _process_file(file: File, plan: Plan, index: ProjectIndex) -> _Done:
    try:
        stat, raw = _read(file.path)
    except OSError as error:
        return _Done(file, problem=unreadable(file.name, error))
    done = _Done(file, key(raw, file.name, file.settings.ignored_for(file.path)), stat, raw, raw)
    return _process(done, plan, index)


def _one_by_one(files: Iterable[File], plan: Plan, index: ProjectIndex) -> Iterator[_Done]:
    """The files, checked: as given, but that those come first whose trees the last ones needed."""
    rest = {os.path.abspath(file.path): file for file in files}
    index.trees.expect(rest)
    while rest:
        path = index.trees.next() or next(iter(rest))
        yield _process_file(rest.pop(path), plan, index)
        index.trees.dismiss(path)


def _process(done: _Done, plan: Plan, index: ProjectIndex) -> _Done:
    file, raw = done.file, done.before
    try:
        project = index.view(file.path, file.name)
        checked = engine.inspect(raw, file.name, file.settings, project)
        done.findings, done.seconds, done.held = checked.findings, checked.seconds, checked.held
        if plan.use_cache:
            done.rests = index.ledger.rests(checked.used)
            done.page = index.ledger.new_page(index.seen)
        if not any(plan.applies(finding, file.settings) for finding in done.findings):
            done.cacheable = not any(finding.rule == INTERNAL_ERROR for finding in done.findings)
        elif plan.action == "fix":
            from devlint import fix

            fixed = fix.fix(raw, file.name, file.settings, unsafe=plan.allows_unsafe(file.settings), project=project)
            done.after, done.findings = fixed.raw, list(fixed.remaining)
            done.applied, done.refused, done.held = tuple(fixed.applied), tuple(fixed.refused), fixed.held
        else:
            from devlint import suppress

            done.after = suppress.add_ignores(raw, file.name, file.settings, project)
            if done.after == raw:
                finding = done.findings[0]
                place = f"{file.name}:{finding.span.row}:{finding.span.column}"
                done.problem = f"{place}: no ignore comment can be added: {finding.message}"
    except Exception as error:
        # a fault of devlint's own in one file must not cost the others their results
        what = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        done.after = raw
        done.problem = f"{file.name}: devlint failed on this file ({what}); please report it with the file"
    if done.after == raw:
        done.before = done.after = b""  # most files: nothing to send back
    return done


def _settle(done: _Done, plan: Plan, caches: _Caches, results: dict[str, list[Finding]], outcome: Outcome) -> None:
    file = done.file
    if done.page is not None:
        caches.pages.add(done.page)
    outcome.add_seconds(done.seconds)
    outcome.warnings += [f"{file.name}: {message}" for message in done.refused]
    if done.problem is not None:
        outcome.problems.append(done.problem)
        return
    findings = done.findings
    if done.after != done.before:
        if plan.write and not _write(done, outcome):
            findings = engine.check(done.before, file.name, file.settings, _new_index().view(file.path, file.name))
        else:
            outcome.changes.append(Change(file, done.before, done.after))
            outcome.applied += [(file, finding) for finding in done.applied]
    elif done.cacheable:
        cache = caches.get(file.settings)
        if cache is not None and done.stat is not None:
            cache.put(done.key, findings, done.rests, done.held)
            cache.seen(file.name, done.stat, done.key)
    results[file.path] = findings
    outcome.add_held(file, done.held)


def _write(done: _Done, outcome: Outcome) -> bool:
    """Write the new content, unless the file is no longer what was read."""
    from devlint import fix

    name, path = done.file.name, done.file.path
    try:
        _, now = _read(path)
        if now == done.after:  # through another name for the same file
            return True
        if now != done.before:
            outcome.problems.append(f"{name}: changed while it was being fixed and was left alone; run devlint again")
            return False
        fix.write(path, done.after)
    except OSError as error:
        outcome.problems.append(f"{name}: cannot be written: {error.strerror or error}; nothing in it was changed")
        return False
    return True


# workers --------------------------------------------------------------------------------------------


def _load_rules() -> None:
    from devlint import rule

    rule.discover()


def available_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _process_all(pending: list[tuple[File, int]], plan: Plan, ahead: _Ahead) -> Iterator[_Done]:
    rest = [each for each in pending if each[0] not in ahead.files]
    lost: list[File] = []
    if rest:
        _load_rules()
        jobs = min(plan.jobs or available_cpus(), len(rest), 61)  # Windows waits for 61 processes at most
        if jobs < 2 or sum(size for _, size in rest) < _SERIAL_BYTES:
            yield from _one_by_one([file for file, _ in rest], plan, _new_index())
        else:
            yield from _pooled(_chunks(rest), plan, jobs, lost)
    yield from ahead.finish(lost)
    # A worker died and took down the pool: one file at a time tells which of them it was.
    for file in lost:
        _load_rules()
        gone: list[File] = []
        yield from _pooled([[file]], plan, 1, gone)
        if gone:
            message = "the process checking it died, perhaps for want of memory; exclude the file, or report it"
            yield _Done(file, problem=f"{file.name}: {message}")


class _Ahead:
    """One process for the few files that are known to need a check, while this one is busy with the cache.

    Only where a process can be forked: to start one in another way takes longer than it saves.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.files: list[File] = []
        self._pid = 0
        self._results = -1

    def begin(self, pending: list[tuple[File, int]]) -> None:
        jobs = self._plan.jobs or available_cpus()
        if not pending or jobs < 2 or sum(size for _, size in pending) >= _SERIAL_BYTES or _start_method() != "fork":
            return
        self.files = [file for file, _ in pending]
        self._results, results = os.pipe()
        with _interrupts_held():  # in the new process for good: this one handles them
            self._pid = os.fork()
            if self._pid == 0:
                self._work(results)
        os.close(results)

    def _work(self, results: int) -> NoReturn:
        try:
            import pickle

            _start_worker()
            with open(results, "wb") as pipe:
                pickle.dump(_process_chunk(self.files, self._plan), pipe)
        finally:
            os._exit(0)  # whatever happened: what comes after `begin` is not for this process

    def finish(self, lost: list[File]) -> list[_Done]:
        """What came of the files; they go to ``lost`` where the process died."""
        if not self._pid:
            return []
        import pickle

        with open(self._results, "rb", closefd=False) as pipe:
            data = pipe.read()
        self.stop()
        try:
            done: list[_Done] = pickle.loads(data)
        except (EOFError, pickle.UnpicklingError):
            lost += self.files
            return []
        return done

    def stop(self) -> None:
        if not self._pid:
            return
        import signal

        os.kill(self._pid, signal.SIGKILL)  # nothing it holds could be lost
        os.waitpid(self._pid, 0)
        os.close(self._results)
        self._pid = 0


def _chunks(pending: list[tuple[File, int]]) -> list[list[File]]:
    """Largest files first, so that none of them is begun last; small ones together."""
    chunks: list[list[File]] = []
    room = 0
    for file, size in sorted(pending, key=lambda each: -each[1]):
        if room < size or not chunks:
            chunks.append([])
            room = _CHUNK_BYTES
        chunks[-1].append(file)
        room -= size
    return chunks


def _pooled(chunks: list[list[File]], plan: Plan, jobs: int, lost: list[File]) -> Iterator[_Done]:
    """Results as they come; files whose worker died go to ``lost``."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool

    with ProcessPoolExecutor(jobs, multiprocessing.get_context(_start_method()), _start_worker) as pool:
        try:
            waiting = {}
            with _interrupts_held():  # workers are started here
                for number, chunk in enumerate(chunks):
                    try:
                        waiting[pool.submit(_process_chunk, chunk, plan)] = chunk
                    except BrokenProcessPool:
                        lost += [file for rest in chunks[number:] for file in rest]
                        break
            for future in as_completed(waiting):
                chunk = waiting.pop(future)
                try:
                    results = future.result()
                except BrokenProcessPool:
                    lost += chunk
                else:
                    yield from results
        except BaseException:  # Ctrl-C: workers hold nothing that could be lost, and the pool ends with them
            for worker in multiprocessing.active_children():
                worker.kill()
            raise


def _start_method() -> str:
    """``fork`` shares what is imported already, but is safe only where no other thread may hold a lock."""
    import threading

    return "fork" if sys.platform == "linux" and threading.active_count() == 1 else "spawn"


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C waits until the end. A worker inherits that: none is interrupted before `_start_worker` could run."""
    import signal

    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_index: ProjectIndex | None = None  # of a worker, for all of its files


def _start_worker() -> None:
    import gc
    import signal

    global _index
    gc.disable()  # it would look through all that is kept, again and again
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to every process: the first one handles it
    _load_rules()  # one that shares nothing with the first process has none yet
    _index = _new_index()


def _process_chunk(chunk: Iterable[File], plan: Plan) -> list[_Done]:
    assert _index is not None
    return list(_one_by_one(chunk, plan, _index))
