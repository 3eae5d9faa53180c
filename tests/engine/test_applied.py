"""Applying strategies: whole or not at all, never two contents under one version, every version restorable."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from engine.applied import Applied, apply, read_source, restore, retire
from engine.check import hash_if_good
from engine.files import AUDIT, read_notes
from engine.history import HISTORY, AppliedError, history_of, live_in, path_of
from engine.reload import Library, LibraryConfig
from engine.strategy_files import GONE_LOOKS
from features.expr import Mistakes
from tests.engine.support import catalogue_registry

REGISTRY = catalogue_registry()
CHECK = hash_if_good(REGISTRY)

TEXT = """
strategy: one
version: 1
request: {zone: int}
candidates: {key: id, fields: {eta_s: double}}
tables:
  bonus: {hit: first, on_gap: 'null', columns: [zone, out.extra], rows: tables/bonus.csv}
rules:
  - {id: far, drop_when: eta_s > 600.0}
score: (bonus.extra ?? 0.0) - eta_s
"""
CSV = "zone,out.extra\n1,10.0\n2,20.0\n"


@pytest.fixture
def author(tmp_path: Path) -> Path:
    """Where the author's files are."""
    folder = tmp_path / "author"
    (folder / "tables").mkdir(parents=True)
    write(folder)
    return folder


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "applied"


def write(
    folder: Path, version: int = 1, extra: str = "10.0", name: str = "one", changes: Mapping[str, str] | None = None
) -> Path:
    text = TEXT.replace("version: 1", f"version: {version}").replace("strategy: one", f"strategy: {name}")
    for before, after in (changes or {}).items():
        text = text.replace(before, after)
    (folder / "tables" / "bonus.csv").write_text(CSV.replace("10.0", extra))
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return path


def put(to: Path, *paths: Path, now_ms: int = 7, **options: Any) -> list[Applied]:
    sources = [read_source(path, CHECK) for path in paths]
    return apply(to, sources, CHECK, actor="ann", reason="because", now_ms=now_ms, **options)


def back(to: Path, version: int, **options: Any) -> Applied:
    return restore(to, "one", version, CHECK, actor="bob", reason="worse", now_ms=9, **options)


def content(to: Path) -> tuple[str, str] | None:
    """What a reader finds: the strategy and its table, by way of the link; None where there is no strategy."""
    path = to / "one.yaml"
    if not path.exists():
        return None
    real = path.resolve(strict=True)
    return real.read_text(), (real.parent / "tables" / "bonus.csv").read_text()


def test_an_applied_strategy_is_there_with_its_tables_and_its_record(author: Path, to: Path) -> None:
    path = write(author)
    (applied,) = put(to, path)
    assert (applied.what, applied.before, applied.kept.version) == ("apply", None, 1)
    assert content(to) == (path.read_text(), (author / "tables" / "bonus.csv").read_text())
    assert live_in(to) == {"one": applied.kept}
    assert applied.kept.files == ["one.yaml", "tables/bonus.csv"]
    (line,) = read_notes(to)
    assert line == {
        "event": "apply", "strategy": "one", "from": None, "to": applied.kept.hash, "from_version": None, "to_version": 1,
        "actor": "ann", "reason": "because", "at_ms": 7,
    }  # fmt: skip


def test_what_was_applied_loads_by_its_link_as_it_did_by_its_file(author: Path, to: Path) -> None:
    (applied,) = put(to, write(author))
    assert CHECK(to / "one.yaml", "one.yaml") == applied.kept.hash


def test_an_engine_serves_what_was_applied_and_what_is_applied_next(author: Path, to: Path, tmp_path: Path) -> None:
    put(to, write(author))
    library = Library(LibraryConfig(strategies_dir=to, models_dir=tmp_path / "m"), lambda: REGISTRY)
    library.refresh()
    first = library.live.strategies["one"].compiled.strategy
    assert (first.version, library.live.errors) == (1, {})
    put(to, write(author, version=2, extra="11.0"))
    library.refresh()
    assert library.live.strategies["one"].compiled.strategy.version == 2
    back(to, 1)
    library.refresh()
    again = library.live.strategies["one"].compiled.strategy
    assert (again.hash, library.live.errors) == (first.hash, {})
    retire(to, "one", actor="ann", reason="done", now_ms=10)
    for _ in range(GONE_LOOKS):
        library.refresh()
    assert library.live.strategies == {}


def test_applying_the_same_again_changes_nothing(author: Path, to: Path) -> None:
    path = write(author)
    put(to, path)
    looks = {file: (file.lstat().st_mtime_ns, file.lstat().st_ino) for file in to.rglob("*") if file.name != ".lock"}
    (again,) = put(to, path, now_ms=8)
    assert (again.what, again.kept.at_ms) == ("unchanged", 7)
    assert {f: (f.lstat().st_mtime_ns, f.lstat().st_ino) for f in to.rglob("*") if f.name != ".lock"} == looks


@pytest.mark.parametrize("change", [{"extra": "11.0"}, {"changes": {"600.0": "700.0"}}])
def test_a_version_is_one_content(author: Path, to: Path, change: dict[str, Any]) -> None:
    put(to, write(author))
    before = content(to)
    with pytest.raises(AppliedError, match="version 1 of 'one' was applied with other content by ann"):
        put(to, write(author, **change))
    assert content(to) == before
    put(to, write(author, version=2))
    with pytest.raises(AppliedError, match="other content"):  # also when it is live no more
        put(to, write(author, **change))


def test_versions_only_go_up_and_history_goes_back(author: Path, to: Path) -> None:
    put(to, write(author, version=3))
    put(to, write(author, version=5, extra="50.0"))
    with pytest.raises(AppliedError, match=r"version 3 of 'one' is below 5.*apply one --version 3"):
        put(to, write(author, version=3))
    with pytest.raises(AppliedError, match="version 4 of 'one' is below 5, which is live; versions only go up"):
        put(to, write(author, version=4))
    rolled = back(to, 3)
    assert (rolled.what, rolled.kept.version, rolled.before and rolled.before.version) == ("rollback", 3, 5)
    assert "version: 3" in (content(to) or ("", ""))[0]
    assert back(to, 3).what == "unchanged"
    (forth,) = put(to, write(author, version=5, extra="50.0"))  # the one that was left, from its file
    assert forth.what == "apply" and content(to) == ((author / "one.yaml").read_text(), CSV.replace("10.0", "50.0"))
    assert [(n["event"], n["from_version"], n["to_version"], n["actor"]) for n in read_notes(to)] == [
        ("apply", None, 3, "ann"), ("apply", 3, 5, "ann"), ("rollback", 5, 3, "bob"), ("apply", 3, 5, "ann"),
    ]  # fmt: skip
    assert [kept.version for kept in history_of(to, "one")] == [3, 5]
    with pytest.raises(AppliedError, match=r"no version 9 of 'one'.*kept are 3, 5"):
        back(to, 9)


def test_mistakes_change_nothing(author: Path, to: Path) -> None:
    put(to, write(author))
    before, notes = content(to), read_notes(to)
    with pytest.raises(Mistakes, match="etas"):
        put(to, write(author, version=2, changes={"eta_s > 600.0": "etas > 600.0"}))
    with pytest.raises(Mistakes):
        put(to, write(author, version=2, extra="many"))
    (author / "tables" / "bonus.csv").unlink()
    with pytest.raises((Mistakes, AppliedError)):
        put(to, author / "one.yaml")
    assert (content(to), read_notes(to)) == (before, notes)


def test_a_folder_is_refused_as_a_whole(author: Path, to: Path) -> None:
    one = write(author)
    put(to, one)
    two = write(author, name="two")
    with pytest.raises(AppliedError, match="other content"):
        put(to, two, write(author, extra="99.0"))
    assert set(live_in(to)) == {"one"}
    with pytest.raises(AppliedError, match="already in"):
        copy = author / "copy.yaml"
        copy.write_text(two.read_text())
        put(to, two, copy)
    write(author)
    assert [a.what for a in put(to, one, two)] == ["unchanged", "apply"]
    assert set(live_in(to)) == {"one", "two"}


def test_files_that_nobody_applied_are_not_replaced(author: Path, to: Path) -> None:
    to.mkdir()
    (to / "one.yaml").write_text("strategy: one\n")
    with pytest.raises(AppliedError, match=r"one.yaml was not put there by apply"):
        put(to, write(author))
    (to / "one.yaml").rename(to / "old.yaml")
    with pytest.raises(AppliedError, match=r"already in .*old.yaml"):
        put(to, write(author))
    assert (to / "old.yaml").read_text() == "strategy: one\n"


@pytest.mark.parametrize("name", ["../other.csv", "/tmp/other.csv"])
def test_files_outside_of_the_folder_are_refused(author: Path, to: Path, name: str) -> None:
    (author.parent / "other.csv").write_text(CSV)
    with pytest.raises((AppliedError, Mistakes)):
        put(to, write(author, changes={"tables/bonus.csv": name}))
    assert live_in(to) == {}


def test_a_version_in_history_that_was_edited_is_not_restored(author: Path, to: Path) -> None:
    put(to, write(author))
    put(to, write(author, version=2))
    first = path_of(to, history_of(to, "one")[0])
    (first.parent / "tables" / "bonus.csv").write_text(CSV.replace("10.0", "66.0"))
    with pytest.raises(AppliedError, match="changed by hand"):
        back(to, 1)
    assert live_in(to)["one"].version == 2


def steps_of(act: Callable[[Callable[[str], None]], object]) -> list[str]:
    seen: list[str] = []
    act(seen.append)
    return seen


def die_at(step: str, act: Callable[[Callable[[str], None]], object]) -> None:
    """Run `act` in a process of its own that is killed, without a chance to clean up, after that step."""
    child = os.fork()
    if child == 0:
        try:
            act(lambda done: os.kill(os.getpid(), signal.SIGKILL) if done == step else None)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, f"never came to {step}"


def test_an_apply_that_dies_leaves_the_old_one_and_can_be_repeated(author: Path, tmp_path: Path) -> None:
    def second(to: Path) -> Callable[[Callable[[str], None]], object]:
        return lambda on_step: put(to, author / "one.yaml", now_ms=8, on_step=on_step)

    write(author)
    put(tmp_path / "dry", author / "one.yaml")
    write(author, version=2, extra="22.0")
    steps = steps_of(second(tmp_path / "dry"))
    assert steps == [
        "staging", "copied one.yaml", "copied tables/bonus.csv", "recorded", "kept", "noted", "linked aside", "live"
    ]  # fmt: skip
    for step in steps:
        write(author)
        to = tmp_path / step
        put(to, author / "one.yaml")
        old = content(to)
        write(author, version=2, extra="22.0")
        die_at(step, second(to))
        if step != "live":
            assert content(to) == old, step
        put(to, author / "one.yaml", now_ms=9)
        assert content(to) == content(tmp_path / "dry"), step
        assert [kept.version for kept in history_of(to, "one")] == [1, 2], step
        assert not list(to.rglob(".*new")), step
        events = [(note["event"], note["at_ms"]) for note in read_notes(to)]
        if step in ("noted", "linked aside"):  # what was announced and did not come to be is said
            assert events == [("apply", 7), ("apply", 8), ("interrupted", 9), ("apply", 9)], step
        else:
            assert events == [("apply", 7), ("apply", 8 if step == "live" else 9)], step


def test_a_rollback_that_dies_leaves_what_was_live(author: Path, tmp_path: Path) -> None:
    for step in ("noted", "linked aside"):
        to = tmp_path / step
        put(to, write(author))
        put(to, write(author, version=2))
        die_at(step, lambda on_step, to=to: back(to, 1, on_step=on_step))  # type: ignore[misc]
        assert live_in(to)["one"].version == 2, step
        assert back(to, 1).what == "rollback"
        assert live_in(to)["one"].version == 1


def test_a_reader_never_sees_half_of_a_strategy(author: Path, to: Path) -> None:
    """Version N carries N as its table's value: whoever follows the link once finds a pair that belongs together."""
    put(to, write(author, version=1, extra="1.5"))
    problems: list[str] = []
    done = threading.Event()
    reads = [0]

    def read() -> None:
        while not done.is_set():
            found = content(to)
            assert found is not None
            version = found[0].split("version: ")[1].split("\n")[0]
            if f"1,{version}.5\n" not in found[1]:
                problems.append(f"version {version} with {found[1]!r}")
            reads[0] += 1

    reader = threading.Thread(target=read)
    reader.start()
    for version in range(2, 20):
        put(to, write(author, version=version, extra=f"{version}.5"))
        if version % 3 == 0:
            back(to, version - 1)
    done.set()
    reader.join()
    assert problems == [] and reads[0] > 20


def test_a_shadow_needs_what_it_shadows(author: Path, to: Path) -> None:
    one = write(author)
    shadow = write(author, name="dark", changes={"version: 1": "version: 1\nshadow_of: one"})
    with pytest.raises(AppliedError, match="'dark' is a shadow of 'one', which is not applied"):
        put(to, shadow)
    assert [a.strategy for a in put(to, shadow, one)] == ["dark", "one"]
    assert live_in(to)["dark"].shadow_of == "one"


def test_retired_is_gone_but_kept(author: Path, to: Path) -> None:
    put(to, write(author))
    assert retire(to, "one", actor="ann", reason="old", now_ms=8).version == 1
    assert (live_in(to), content(to)) == ({}, None)
    with pytest.raises(AppliedError, match="no strategy 'one' is live"):
        retire(to, "one", actor="ann", reason="old", now_ms=9)
    assert back(to, 1).what == "apply"
    assert content(to) is not None


def test_the_folder_can_be_moved(author: Path, to: Path) -> None:
    put(to, write(author))
    there = to.with_name("elsewhere")
    to.rename(there)
    assert content(there) is not None and set(live_in(there)) == {"one"}


def test_the_audit_log_only_grows(author: Path, to: Path) -> None:
    put(to, write(author))
    before = (to / AUDIT).read_bytes()
    put(to, write(author, version=2))
    back(to, 1)
    after = (to / AUDIT).read_bytes()
    assert after.startswith(before) and len(after.splitlines()) == 3
    assert all(json.loads(line)["actor"] for line in after.splitlines())
    assert (to / HISTORY / "one").is_dir()
