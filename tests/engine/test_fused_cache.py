"""The cache of machine code: one compiler, whoever asks; damage is noticed and repaired; a worker that dies loses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from engine.fused_cache import (
    FAILED,
    FUSED,
    SOURCE,
    CompileFailedError,
    FusedCache,
    host,
    locked,
    pack,
    spawn_worker,
    unpack,
    write_atomically,
)
from engine.fused_worker import KEEP, main, prune
from features.expr.fused_machine import Kernel, Machine

ROOT = Path(__file__).resolve().parents[2]


def text_of(number: int) -> str:
    """A small module: `before` counts up from a number, `after` down."""
    functions = [
        f"def {name}(inputs, outputs, asked):\n"
        f"    out0 = data_of(item_of(outputs, 0))\n"
        f"    for i in range(rows_of(item_of(outputs, 0))):\n"
        f"        put_int(out0, i, {number} {sign} i, 0)\n"
        f"    return 0\n"
        for name, sign in (("before", "+"), ("after", "-"))
    ]
    return "\n\n".join(functions)


def count(objects: dict[str, bytes], name: str) -> list[int]:
    out = np.zeros(3, np.int64)
    Kernel(Machine(objects), name, ()).run((), (), [out], 3)
    return out.tolist()


def wait_until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> FusedCache:
    """A cache that has compiled one text through a real worker process, which stays for a while."""
    cache = FusedCache(tmp_path_factory.mktemp("warm") / "cache")
    objects = cache.get(text_of(5))
    assert count(objects, "before") == [5, 6, 7] and count(objects, "after") == [5, 4, 3]
    return cache


def copied(warm: FusedCache, folder: Path) -> FusedCache:
    """A cache of its own with the same file, and a worker that must not be needed."""

    def refuse(folder: Path) -> None:
        raise AssertionError("nothing is to be compiled")

    cache = FusedCache(folder / "cache", start_worker=refuse)
    name = warm.key(text_of(5)) + FUSED
    (cache.folder / name).write_bytes((warm.folder / name).read_bytes())
    return cache


def test_what_is_compiled_is_loaded_without_a_compiler(warm: FusedCache, tmp_path: Path) -> None:
    cache = copied(warm, tmp_path)
    objects = cache.get(text_of(5))
    assert count(objects, "after") == [5, 4, 3]
    assert cache.load(text_of(99)) is None


def test_an_engine_never_imports_numba(warm: FusedCache) -> None:
    script = (
        "import sys; from pathlib import Path; from engine.fused_cache import FusedCache; from engine.fused import fused_rules\n"
        "from features.expr.fused_machine import Machine\n"
        f"Machine(FusedCache(Path({str(warm.folder)!r})).load({text_of(5)!r}))\n"
        "assert 'numba' not in sys.modules and 'llvmlite.binding' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def test_a_strategy_compiled_by_the_worker_runs_where_numba_was_never_imported(tmp_path: Path) -> None:
    script = f"""
import sys
from pathlib import Path
from engine.fused import fused_rules
from engine.fused_cache import FusedCache
from engine.fused_plan import plan_rules
from engine.rules import ColumnRules
from tests.bench.bench_fused import columns_of, compile_bench
from tests.engine.rule_columns import assert_same_before

folder = Path({str(tmp_path)!r})
compiled = compile_bench(folder)
plan = plan_rules(compiled)
fused = fused_rules(compiled, plan, FusedCache(folder / "fused").get(plan.text))
columns, _ = columns_of(compiled, 100)
assert_same_before(fused.before(dict(columns), 100, 0), ColumnRules(compiled).before(dict(columns), 100, 0), "worker")
assert "numba" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda raw: b"",
    "cut off in the code": lambda raw: raw[: len(raw) // 2],
    "cut off in the head": lambda raw: raw[:40],
    "one byte altered": lambda raw: raw[:-100] + bytes([raw[-100] ^ 1]) + raw[-99:],
    "one byte more": lambda raw: raw + b"\0",
    "of another format": lambda raw: b"hailstream fused 0" + raw[18:],
    "something else": lambda raw: os.urandom(5000),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_file_is_as_good_as_absent(warm: FusedCache, tmp_path: Path, how: str) -> None:
    cache = copied(warm, tmp_path)
    path = cache.folder / (cache.key(text_of(5)) + FUSED)
    path.write_bytes(DAMAGE[how](path.read_bytes()))
    assert cache.load(text_of(5)) is None
    assert not path.exists()


def test_a_damaged_file_is_made_again(warm: FusedCache) -> None:
    path = warm.folder / (warm.key(text_of(6)) + FUSED)
    path.write_bytes(b"damaged")
    assert count(warm.get(text_of(6)), "before") == [6, 7, 8]
    assert unpack(path.read_bytes()) is not None


def test_what_is_packed_comes_back_and_nothing_else_does() -> None:
    objects = {"before": b"abc\n", "after": b""}
    assert unpack(pack(objects)) == objects
    assert unpack(b"") is None
    assert unpack(pack(objects).replace(b"abc", b"abd")) is None


def test_many_askers_at_once_get_one_compile_each_text(warm: FusedCache) -> None:
    caches = [FusedCache(warm.folder) for _ in range(3)]
    before = (warm.folder / "worker.log").read_text().count("compiled in")
    found: list[list[int]] = []

    def ask(cache: FusedCache, number: int) -> None:
        found.append(count(cache.get(text_of(number)), "before"))

    threads = [threading.Thread(target=ask, args=(cache, number)) for cache in caches for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(found) == [[1, 2, 3]] * 3 + [[2, 3, 4]] * 3
    log = (warm.folder / "worker.log").read_text()
    assert log.count("compiled in") - before <= 4, log  # an asker that comes while the answer is written may ask again


def test_a_second_worker_leaves_at_once(tmp_path: Path) -> None:
    cache = FusedCache(tmp_path / "cache")
    spawn_worker(cache.folder)
    wait_until(lambda: locked(cache.folder))
    assert main(cache.folder) == 0
    assert locked(cache.folder)


def test_the_worker_is_nice_among_all_processes() -> None:
    """Also where Linux shares the processor between sessions first: there the session is nice."""
    command = "from engine.fused_worker import be_nice; import os, pathlib; be_nice(); print(os.nice(0));"
    command += "group = pathlib.Path('/proc/self/autogroup'); print(group.read_text() if group.exists() else 'nice 15')"
    raw = subprocess.check_output([sys.executable, "-c", command], cwd=ROOT, start_new_session=True, text=True)
    niceness, group = raw.split("\n", 1)
    assert niceness == "15" and group.split()[-2:] == ["nice", "15"]


def test_a_worker_that_is_killed_loses_no_question(tmp_path: Path) -> None:
    """The first process dies before it has begun; the next one finds the question where it was left."""
    started: list[Path] = []

    def start(folder: Path) -> None:
        started.append(folder)
        if len(started) > 1:
            spawn_worker(folder)
        else:
            process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            process.send_signal(signal.SIGKILL)
            process.wait()

    cache = FusedCache(tmp_path / "cache", start_worker=start)
    assert count(cache.get(text_of(8)), "before") == [8, 9, 10]
    assert len(started) == 2


def test_a_compiler_that_always_dies_is_given_up(tmp_path: Path) -> None:
    started: list[Path] = []

    def die(folder: Path) -> None:
        started.append(folder)

    cache = FusedCache(tmp_path / "cache", start_worker=die)
    cache._wait_for_lock = lambda deadline: None  # type: ignore[method-assign]
    with pytest.raises(CompileFailedError, match="died 3 times"):
        cache.get(text_of(9))
    assert len(started) == 3 and not list(cache.folder.glob(f"*{SOURCE}"))


def test_a_text_that_does_not_compile_is_answered_and_others_go_on(warm: FusedCache) -> None:
    with pytest.raises(CompileFailedError, match="no_such_thing"):
        warm.get(text_of(1).replace("put_int", "no_such_thing"))
    assert count(warm.get(text_of(3)), "before") == [3, 4, 5]


def test_who_no_longer_wants_it_stops_waiting(tmp_path: Path) -> None:
    cache = FusedCache(tmp_path / "cache", start_worker=lambda folder: None)
    with pytest.raises(TimeoutError):
        cache.get(text_of(1), stop=lambda: True)
    cache._wait_for_lock = lambda deadline: None  # type: ignore[method-assign]
    with pytest.raises(TimeoutError):
        cache.get(text_of(1), timeout_s=0.0)


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="700"):
        FusedCache(folder)


def test_the_key_is_of_text_and_machine(tmp_path: Path) -> None:
    cache = FusedCache(tmp_path / "cache")
    assert cache.key("a") == cache.key("a") != cache.key("b")
    assert "numba" in host() and "llvmlite" in host()


def test_only_what_was_used_last_is_kept(tmp_path: Path) -> None:
    for number in range(KEEP + 5):
        write_atomically(tmp_path / f"{number:040d}{FUSED}", b"")
        os.utime(tmp_path / f"{number:040d}{FUSED}", (number, number))
    write_atomically(tmp_path / f"x{FAILED}", b"")
    prune(tmp_path)
    kept = sorted(path.name for path in tmp_path.glob(f"*{FUSED}"))
    assert len(kept) == KEEP and kept[0].startswith(f"{5:040d}")
