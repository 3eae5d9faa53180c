"""Tests of strategies: what they say when they pass, when they fail, and when they are written wrong."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from engine.case_file import read_cases
from engine.server import SHIPPED_STRATEGIES
from engine.strategy_test import CaseResult, Suite, load_suite, run_case
from features.expr import Mistakes
from tests.engine.support import catalogue_registry, shipped_registry

STRATEGY = """
strategy: small
version: 1
scope: {city: '*', product: express}
request: {zone: int, hour: int, wait: 'duration?', tags: 'list(string)?'}
candidates:
  key: driver_id
  fields: {eta_s: 'double?', state: string, vip: 'bool?'}
features:
  driver: driver_stats
  zone: zone_stats
params:
  max_eta_s: {type: double, default: 900, min: 60, max: 3600, layer: core}
  use_model: {type: bool, default: false, layer: ranking}
models:
  p_accept: {uses: accept@champion, deadline: 8ms}
  p_cancel: {uses: cancel@champion, deadline: 8ms, on_late: '0.25'}
rules:
  - {id: not_idle, drop_when: "state != 'idle'", kill_switch: ks_idle}
  - {id: sure_vip, drop_when: '!vip', on_unknown: fail_row}
  - {id: too_far,  drop_when: '(eta_s ?? 0.0) > params.max_eta_s'}
  - {id: waits,    when: wait != null && wait > duration('2m'), add: 1}
  - {id: unseen,   when: driver.offers == null, add: 10}
score: "(params.use_model ? (p_accept ?? 0.5) : 0.0) - p_cancel + (eta_s ?? 0.0) / 1000.0"
outputs: {minutes: '(eta_s ?? 0.0) / 60.0'}
experiments:
  learned: {layer: ranking, unit: order_id, arms: {rules: {share: 0.5}, model: {share: 0.5, set: {params.use_model: true}}}}
tests: tests/small.yaml
"""
DEFAULTS = """
defaults:
  product: express
  request: {zone: 7, hour: 9}
  candidate: {eta_s: 100, state: idle, vip: true}
  features: {driver: {offers: 3}}
cases:
"""


def suite_of(tmp_path: Path, cases: str) -> Suite:
    (tmp_path / "tests").mkdir(exist_ok=True)
    (tmp_path / "small.yaml").write_text(STRATEGY)
    (tmp_path / "tests" / "small.yaml").write_text(DEFAULTS + cases)
    suite = load_suite(tmp_path / "small.yaml", catalogue_registry())
    assert suite is not None
    return suite


def run(tmp_path: Path, cases: str) -> list[CaseResult]:
    suite = suite_of(tmp_path, cases)
    return [run_case(suite, case) for case in suite.cases]


def mistakes(tmp_path: Path, cases: str) -> list[str]:
    """`line:col kind message` of every mistake, lines counted from the first case."""
    with pytest.raises(Mistakes) as caught:
        suite_of(tmp_path, cases)
    first = DEFAULTS.count("\n")
    assert all(item.file.endswith("tests/small.yaml") for item in caught.value.items)
    return [f"{item.line - first}:{item.col} {item.kind} {item.message}" for item in caught.value.items]


@pytest.mark.parametrize("name", [path.stem for path in sorted(SHIPPED_STRATEGIES.glob("*.yaml"))])
def test_shipped_strategy_passes_its_tests_and_they_reach_all_of_it(name: str) -> None:
    from engine.coverage import Coverage

    suite = load_suite(SHIPPED_STRATEGIES / f"{name}.yaml", shipped_registry())
    assert suite is not None, "every shipped strategy names its tests"
    reached = Coverage(suite.compiled)
    for case in suite.cases:
        result = run_case(suite, case)
        assert result.passed, "\n".join(failure.mistake.format() for failure in result.failures)
        assert result.decision is not None
        reached.add(result.decision)
    assert [(item.owner, item.text, item.missing) for item in reached.missing] == []
    assert reached.share() == 1.0


PASSING = """
  - name: everything that can be given and expected
    as_of: '2024-03-10T07:30:00Z'
    request: {wait: 90s, tags: [pool]}
    candidates:
      d-1: {eta_s: 90}
      d-2: {state: on_trip}
      d-3: {vip: null}
      d-4: {eta_s: 950.5}
      d-5: {}
    features: {driver: {d-5: {offers: missing}}}
    models: {p_accept: {d-1: 0.9, d-5: null}, p_cancel: late}
    params: {use_model: true}
    expect:
      chosen: d-5
      order: [d-5, d-1]
      dropped: {d-2: not_idle, d-3: unknown:sure_vip, d-4: too_far}
      scores: {d-1: 0.74, d-5: 10.35, d-2: null}
      fired: {d-5: [unseen], d-1: [], d-2: [not_idle]}
      unknown: {d-3: [sure_vip], d-1: []}
      outputs: {d-1: {minutes: 1.5}, d-2: {minutes: null}}
      propensities: {d-5: 1, d-1: 0}
      quality: degraded
      decided_by: rank
      params: {use_model: true, max_eta_s: 900}
      tolerance: 1.0e-12
  - name: a switched-off rule does nothing, by the name of its switch or its own
    switches: [ks_idle, sure_vip]
    candidates: {d-1: {state: on_trip, vip: null}}
    expect: {dropped: {}, fired: {d-1: []}, unknown: {d-1: []}}
  - name: a pinned arm sets its parameters
    arms: {learned: model}
    candidates: {d-1: {}}
    models: {p_accept: 0.75}
    expect: {params: {use_model: true}, scores: {d-1: 0.6}}
  - name: experiments run where a case asks for them
    order_id: o-7
    assign: true
    candidates: {d-1: {}}
    expect: {arms: {learned: %s}}
  - name: a wait beyond two minutes counts
    request: {wait: 120001}
    candidates: {d-1: {}}
    expect: {fired: {d-1: [waits]}}
  - name: a view that is not kept up to date degrades the decision
    candidates: {d-1: {}}
    features: {driver: stale}
    expect: {quality: degraded, fired: {d-1: [unseen]}, decided_by: rank}
  - name: a store that is away does so, too
    candidates: {d-1: {}}
    features: away
    expect: {quality: degraded, fired: {d-1: [unseen]}, decided_by: fallback}
  - name: a feature that is stale has no value
    candidates: {d-1: {}}
    features: {driver: {d-1: {offers: stale}}}
    expect: {quality: full, fired: {d-1: [unseen]}}
"""


def test_what_is_given_decides_and_what_is_expected_is_compared(tmp_path: Path) -> None:
    from engine.experiment import assign

    suite = suite_of(tmp_path, PASSING % "rules")
    arm = assign(suite.compiled, {"order_id": "o-7", "city": "x", "product": "y"}, 0).arms["learned"]
    results = run(tmp_path, PASSING % arm)
    assert [(r.case.name, [f.mistake.message for f in r.failures]) for r in results if not r.passed] == []
    assert results[0].decision is not None and results[0].decision.as_of_ms == 1_710_055_800_000
    assert sorted(result.seconds for result in results)[len(results) // 2] < 0.02


def test_failure_is_a_difference_at_its_place_with_the_candidate_explained(tmp_path: Path) -> None:
    (result,) = run(
        tmp_path,
        """
  - name: all wrong
    candidates: {d-1: {}, d-2: {eta_s: 950.5}, d-3: {eta_s: 50}}
    expect:
      chosen: d-3
      order: [d-3, d-1]
      dropped: {d-3: too_far}
      scores: {d-1: 0.1}
      fired: {d-2: []}
      outputs: {d-1: {minutes: 2}}
      quality: degraded
""",
    )
    told = [f"{f.mistake.line - DEFAULTS.count(chr(10))}:{f.mistake.col} {f.mistake.message}" for f in result.failures]
    assert told == [
        "5:15 chosen is d-1, expected d-3",
        "6:14 order is [d-1, d-3], expected [d-3, d-1]",
        "7:16 d-2 is dropped (too_far), expected survives",
        "7:22 d-3 survives, expected is dropped (too_far)",
        "8:21 scores d-1 is -0.15, expected 0.1",
        "9:20 fired d-2 is [too_far], expected []",
        "10:32 outputs d-1 minutes is 1.6666666666666667, expected 2.0",
        "11:16 quality is full, expected degraded",
    ]
    assert result.failures[0].explained[0].startswith("d-3 in decision ")
    assert result.failures[2].explained[0].endswith("dropped by rule too_far because (eta_s ?? 0.0) > params.max_eta_s")
    assert "  eta_s             950.5  (candidate)" in result.failures[2].explained
    assert result.failures[-1].explained == ()


def test_no_failure_where_equal_within_the_tolerance(tmp_path: Path) -> None:
    case = "\n  - name: near\n    candidates: {{d-1: {{}}}}\n    expect: {{scores: {{d-1: -0.1501}}, tolerance: {tolerance}}}\n"
    assert run(tmp_path, case.format(tolerance=0.001))[0].passed
    assert not run(tmp_path, case.format(tolerance=0.0001))[0].passed


def test_every_mistake_of_a_file_comes_at_once_with_its_place(tmp_path: Path) -> None:
    found = mistakes(
        tmp_path,
        """
  - name: wrong
    as_of: yesterday
    request: {zone: seven, huor: 3, wait: 5 minutes}
    candidates:
      d-1: {eta_s: fast, state: null}
      d-2: {speed: 3}
    features:
      driver: {d-9: {offers: 3}, d-1: {ofers: 3, offers: 2.5}}
      zones: {}
    models: {p_acept: 0.5, p_cancel: {d-7: 0.5, d-1: high}}
    params: {max_eta_s: 10, w: 1}
    arms: {learned: modell}
    switches: [idle]
    expect:
      chosen: d-8
      order: d-1
      dropped: {d-1: tofar}
      scores: {d-1: much}
      fired: {d-1: [too_fra]}
      outputs: {d-1: {hours: 3}}
      best: d-1
  - name: wrong
    candidates: {d-1: {}}
  - name: nobody
    expect: {chosen: null}
""",
    )
    assert (
        found
        == [
            "3:12 type as_of is a timestamp, not yesterday",
            "4:21 type request.zone is a int, not seven",
            "4:28 unknown request: no field 'huor'",
            "4:43 type request.wait is a duration?, not 5 minutes",
            "6:20 type candidate d-1.eta_s is a double?, not fast",
            "6:33 nullable candidate d-1.state is a string; it cannot be null",
            "7:13 unknown candidate d-2: no field 'speed'",
            "9:16 unknown features.driver: no candidate 'd-9'",
            "9:40 unknown view 'driver_stats' has no feature 'ofers'",
            "9:58 type features.driver.offers is a int?, not 2.5",
            "10:7 unknown features: no role 'zones'",
            "11:14 unknown models: no 'p_acept' in strategy 'small'",
            "11:39 unknown models.p_cancel: no candidate 'd-7'",
            "11:54 type models.p_cancel.d-1 is a double?, not high",
            "12:25 bound params.max_eta_s must lie from 60.0 to 3600.0, not 10",
            "12:29 unknown params: no 'w' in strategy 'small'",
            "13:21 unknown experiment 'learned' has no arm 'modell'",
            "14:16 unknown no rule and no kill_switch 'idle'",
            "16:15 unknown no candidate 'd-8' in this case",
            "17:14 type 'order' must be a list: [a, b]",
            "18:22 unknown no reason 'tofar' to drop anything",
            "19:21 type scores.d-1 is a double?, not much",
            "20:21 unknown no rule 'too_fra'",
            "21:23 unknown no output 'hours'",
            "22:7 unknown-key expect has no field 'best'",
            "23:5 duplicate case 'wrong' is already on line 9",
            "23:5 missing a case needs 'expect': one without could never fail",
            "25:5 missing a case needs 'candidates': {key: {field: value}}, at least one",
        ]
        or found == []
    )


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("expect: {scores: {}}", "names nothing that must hold"),
        ("expect: {chosen: [d-1]}", "chosen must be a single value"),
        ("expect: {order: [[d-1]]}", "an item of 'order' must be a single value"),
        ("expect: {dropped: {d-1: [too_far]}}", "dropped.d-1 must be a single value"),
        ("expect: {params: {max_eta_s: {a: 1}}}", "params.max_eta_s must be a single value"),
        ("features: {driver: {d-1: stale}}\n    expect: {chosen: d-1}", "features.driver.d-1 must be a mapping"),
        (
            "features: {driver: old}\n    expect: {chosen: d-1}",
            "features.driver must be a mapping, 'missing' or 'stale'",
        ),
        ("features: gone\n    expect: {chosen: d-1}", "'features' must be a mapping of roles, or 'away'"),
    ],
)
def test_what_would_be_left_out_in_silence_is_a_mistake(tmp_path: Path, case: str, told: str) -> None:
    with pytest.raises(Mistakes, match=told):
        suite_of(tmp_path, f"\n  - name: silent\n    candidates: {{d-1: {{}}}}\n    {case}\n")


def test_hint_names_what_was_meant(tmp_path: Path) -> None:
    with pytest.raises(Mistakes) as caught:
        suite_of(tmp_path, "\n  - name: near\n    candidates: {d-1: {eta: 3}}\n    expect: {dropped: {d-1: too_fat}}\n")
    assert [item.hint for item in caught.value.items] == ["did you mean 'eta_s'?", "did you mean 'too_far'?"]


def test_file_without_cases_and_one_that_is_not_there_are_told(tmp_path: Path) -> None:
    with pytest.raises(Mistakes, match="needs 'cases', a list with at least one case"):
        suite_of(tmp_path, "")
    (tmp_path / "tests" / "small.yaml").unlink()
    with pytest.raises(FileNotFoundError):
        load_suite(tmp_path / "small.yaml", catalogue_registry())


def test_strategy_without_tests_has_no_suite(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(STRATEGY.replace("tests: tests/small.yaml", ""))
    assert load_suite(tmp_path / "small.yaml", catalogue_registry()) is None


def test_request_that_the_engine_would_refuse_is_a_failure_at_its_place(tmp_path: Path) -> None:
    (result,) = run(
        tmp_path, "\n  - name: out of scope\n    product: pool\n    candidates: {d-1: {}}\n    expect: {chosen: d-1}\n"
    )
    (failure,) = result.failures
    assert failure.mistake.message == "refused: $.product: strategy small serves product 'express', not 'pool'"
    assert (failure.mistake.line - DEFAULTS.count("\n"), failure.mistake.col) == (3, 14)
    assert result.decision is None


def test_documented_example_passes(tmp_path: Path) -> None:
    doc = (SHIPPED_STRATEGIES.parent / "STRATEGIES.md").read_text(encoding="utf-8")
    example = doc.split("## Testing a strategy")[1].split("```yaml\n")[1].split("```")[0]
    strategy = (SHIPPED_STRATEGIES / "express_dispatch.yaml").read_text()
    (tmp_path / "tests").mkdir()
    (tmp_path / "express_dispatch.yaml").write_text(strategy)
    (tmp_path / "tests" / "express_dispatch.yaml").write_text(example)
    suite = load_suite(tmp_path / "express_dispatch.yaml", shipped_registry())
    assert suite is not None and len(suite.cases) == 2
    for case in suite.cases:
        assert [failure.mistake.message for failure in run_case(suite, case).failures] == []


JUNK = (
    "null", "[]", "{}", "{a: 1}", "[1, d-1]", "-1", "1e999", ".nan", "true", "'x'", "late", "missing", "d-9", "", "~",
    "9223372036854775808", "2024-01-01T00:00:00Z", "away", "stale",
)  # fmt: skip


def broken_files(tmp_path: Path, seeds: range) -> tuple[int, int]:
    """Test files with a few words replaced: (how many still run, how many are refused with places)."""
    suite = load_suite(SHIPPED_STRATEGIES / "express_dispatch.yaml", shipped_registry())
    assert suite is not None
    text = (SHIPPED_STRATEGIES / "tests" / "express_dispatch.yaml").read_text()
    words = re.findall(r"[\w.+-]+|[^\w\s]|\s+", text)
    path = tmp_path / "broken.yaml"
    ran = refused = 0
    for seed in seeds:
        rng = random.Random(seed)
        changed = list(words)
        for at in rng.sample([at for at, word in enumerate(words) if not word.isspace()], rng.randrange(1, 4)):
            changed[at] = rng.choice(JUNK) if rng.random() < 0.7 else rng.choice(words)
        path.write_text("".join(changed))
        print("seed", seed)
        try:
            for case in read_cases(path, suite.compiled):
                run_case(suite, case)
            ran += 1
        except Mistakes as error:
            assert error.items and all(item.line >= 1 and item.col >= 1 for item in error.items)
            refused += 1
    return ran, refused


def test_broken_test_files_run_or_are_refused_with_places(tmp_path: Path) -> None:
    ran, refused = broken_files(tmp_path, range(60))
    assert ran > 5 and refused > 20


@pytest.mark.slow
def test_many_broken_test_files_run_or_are_refused_with_places(tmp_path: Path) -> None:
    ran, refused = broken_files(tmp_path, range(60, 3000))
    assert ran > 300 and refused > 1000
