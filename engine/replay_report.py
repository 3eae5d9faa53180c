"""What a replay found, for people and programs: one document of plain values, and the page with plots.

`document` is what `strategies replay --json` prints; `page` shows the same with charts and the orders that show most, explained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from engine.explain import explain
from engine.replay import Report
from engine.replay_diff import SEVERAL, Diff, Group, Telling, hour_text
from engine.replay_log import Log
from engine.report_page import Figure, Fold, Page, bars, shares
from engine.strategy import CompiledStrategy

_Z95: Final = 1.959963984540054
_MOST_GROUPS: Final = 30
_MOST_LINES: Final = 15
_MOST_NOTE: Final = f"The {_MOST_LINES} with the most changed orders."
_SHARE_NOTE: Final = "Share of orders with another first choice; the thin boxes are 95 % intervals."


def interval(hits: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share, decisions taken as independent; (0, 1) of nothing."""
    if count == 0:
        return 0.0, 1.0
    share, z2 = hits / count, _Z95**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = _Z95 / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def mean_interval(total: float, squares: float, count: int) -> tuple[float, float, float]:
    """(mean, low, high) of `count` values by the normal approximation, 95 %."""
    if count == 0:
        return 0.0, 0.0, 0.0
    mean = total / count
    half = _Z95 * math.sqrt(max(squares / count - mean**2, 0.0) / count)
    return mean, max(0.0, mean - half), mean + half


def document(report: Report, log: Log | None = None) -> dict[str, Any]:
    """Plain values, shares as fractions. `log` adds what of the log was passed over."""
    diff, same = report.diff, report.same
    low, high = interval(diff.first_changed, diff.decisions)
    mean, mean_low, mean_high = mean_interval(diff.moved, diff.moved_squares, diff.decisions)
    return {
        "strategy": report.strategy,
        "version": report.version,
        "hash": report.hash,
        "outcome": report.outcome,
        "decisions": report.decisions,
        "candidates": report.candidates,
        "log": None if log is None else _log(log),
        "versions": [
            {"version": version, "hash": key, "decisions": count} for (version, key), count in report.versions.items()
        ],
        "unchanged": {
            "decisions": same.decisions,
            "candidates": same.candidates,
            "differing": same.differing,
            "by_part": dict(same.parts),
            "differences": [
                {name: getattr(one, name) for name in ("decision_id", "candidate", "part", "logged", "replayed")}
                for one in same.differences
            ],
        },
        "changed": {
            "decisions": diff.decisions,
            "candidates": diff.candidates,
            "first_choice": {"changed": diff.first_changed, "share": diff.changed_share, "low95": low, "high95": high},
            "chosen": {"changed": diff.chosen_changed},
            "moved_mass": {"mean": mean, "low95": mean_low, "high95": mean_high},
            "by_cause": [
                {"cause": cause, "changed": count, "share": count / diff.decisions}
                for cause, count in diff.causes.most_common()
            ],
            "several": [{"changes": list(labels), "changed": n} for labels, n in diff.combinations.most_common()],
            "by": {name: _groups(groups) for name, groups in diff.groups.items()},
            "by_hour": [_group(hour_text(hour), group) for hour, group in sorted(diff.hours.items())],
            "rules": _rules(diff),
            "newly_dropped": diff.newly_dropped,
            "newly_kept": diff.newly_kept,
            "score_shift": _shift(diff),
            "elements": {key: [one.label for one in found] for key, found in diff.elements.items()},
            "telling": [_telling(one) for one in diff.telling],
        },
        "not_in_log": {"decisions": report.unresolved, "names": dict(report.lacking)},
        "refused": dict(report.refused),
    }


def page(report: Report, compiled: CompiledStrategy, before: Mapping[str, CompiledStrategy], subtitle: str) -> Page:
    """The report as a page. `before` are the strategies that decided, by hash, for the explanations."""
    found, diff = document(report), report.diff
    out = Page(f"Replay of {report.strategy}, version {report.version}", subtitle)
    out.figures(_figures(found))
    for line in caveats(found):
        out.text(line)
    if diff.decisions:
        _charts(out, found)
        out.table(
            "Rules",
            _rule_rows(diff),
            note="Candidates. Newly dropped: kept then, dropped by it now. Newly kept: the other way round.",
        )
        for name, groups in found["changed"]["by"].items():
            if len(groups) > 1:
                out.table(f"By {name}", _group_rows(name, groups), note=_MOST_NOTE if len(groups) > _MOST_LINES else "")
        out.folds(
            "Orders that show most",
            [_fold(one, compiled, before.get(one.decision.strategy_hash)) for one in diff.telling],
            note="Of every cause in turn, the orders with the most chosen mass that moves. Open one for its explanation.",
        )
    if report.same.differing:
        rows = [
            {
                "decision": one.decision_id,
                "candidate": one.candidate,
                "what": one.part,
                "logged": str(one.logged),
                "replayed": str(one.replayed),
            }
            for one in report.same.differences[:100]
        ]
        out.table("Where the unchanged strategy differs from its log", rows, note="The first 100 places.")
    return out


def caveats(found: Mapping[str, Any]) -> list[str]:
    """What a reader must know beside the numbers, one sentence each."""
    out = []
    lost = found["not_in_log"]["decisions"]
    if lost:
        names = "; ".join(f"{name} ({count})" for name, count in found["not_in_log"]["names"].items())
        out.append(f"{lost} decisions are left out: they hang on what the log has not. {names}")
    if found["refused"]:
        total = sum(found["refused"].values())
        names = "; ".join(f"{why} ({count})" for why, count in found["refused"].items())
        out.append(f"{total} decisions are left out: the strategy would refuse their requests. {names}")
    changed = found["changed"]
    if changed["decisions"]:
        out.append(
            "A first choice is the best-ranked candidate, before any draw. Moved mass is half the sum of |chance now - chance "
            "then| over the candidates of an order: the least share of draws that must come out otherwise. Intervals are 95 %, "
            "decisions taken as independent. What drivers and riders would have done is not in these numbers."
        )
    return out


def percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _log(log: Log) -> dict[str, Any]:
    return {
        "read": log.read,
        "taken": log.taken,
        "other_strategies": log.others,
        "other_times": log.outside,
        "duplicates": log.duplicates,
        "unreadable": log.num_unreadable,
        "unreadable_places": log.unreadable,
    }


def _groups(groups: Mapping[Any, Group]) -> list[dict[str, Any]]:
    """The groups with the most changed orders first."""
    ordered = sorted(groups.items(), key=lambda item: (-item[1].changed, -item[1].decisions, str(item[0])))
    return [_group(value, group) for value, group in ordered]


def _group(value: Any, group: Group) -> dict[str, Any]:
    low, high = interval(group.changed, group.decisions)
    share = group.changed / group.decisions
    return {
        "value": value,
        "decisions": group.decisions,
        "changed": group.changed,
        "share": share,
        "low95": low,
        "high95": high,
    }


def _rules(diff: Diff) -> list[dict[str, Any]]:
    out = []
    for name, rule in diff.rules.items():
        out.append(
            {
                "rule": name,
                "rate_then": rule.fired_then / max(diff.candidates, 1) if rule.there_then else None,
                "rate_now": rule.fired_now / max(diff.candidates, 1) if rule.there_now else None,
                "newly_dropped": rule.newly_dropped,
                "newly_kept": rule.newly_kept,
                "changed_first_choices": diff.causes.get(f"rule {name}", 0),
            }
        )
    return out


def _rule_rows(diff: Diff) -> list[dict[str, Any]]:
    return [
        {
            "rule": row["rule"],
            "fired then": None if row["rate_then"] is None else percent(row["rate_then"]),
            "fired now": None if row["rate_now"] is None else percent(row["rate_now"]),
            "newly dropped": row["newly_dropped"],
            "newly kept": row["newly_kept"],
            "orders it changed": row["changed_first_choices"],
        }
        for row in _rules(diff)
    ]


def _group_rows(name: str, groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            name: None if one["value"] is None else str(one["value"]),
            "orders": one["decisions"],
            "other first choice": one["changed"],
            "share": percent(one["share"]),
            "95 % from": percent(one["low95"]),
            "to": percent(one["high95"]),
        }
        for one in groups[:_MOST_LINES]
    ]


def _shift(diff: Diff) -> dict[str, Any]:
    shift = diff.shift
    return {
        "candidates": shift.count,
        "unmoved": shift.zero,
        "mean": shift.total / shift.count if shift.count else None,
        "edges": [] if shift.edges is None else shift.edges.tolist(),
        "counts": [] if shift.edges is None else shift.counts.tolist(),
        "below": shift.below,
        "above": shift.above,
    }


def _telling(one: Telling) -> dict[str, Any]:
    return {
        "decision_id": one.decision.decision_id,
        "order_id": one.decision.order_id,
        "as_of_ms": one.decision.as_of_ms,
        "cause": one.cause,
        "changes": list(one.details),
        "moved_mass": one.moved,
        "then": one.then,
        "now": one.now,
    }


def _figures(found: Mapping[str, Any]) -> list[Figure]:
    same, changed = found["unchanged"], found["changed"]
    out = [Figure("orders replayed", f"{found['decisions']:,}", f"{found['candidates']:,} candidates")]
    if same["decisions"]:
        tone, note = (
            ("bad", f"of {same['decisions']:,}")
            if same["differing"]
            else ("good", f"of {same['decisions']:,}, to the bit")
        )
        out.append(Figure("unchanged, but different", f"{same['differing']:,}", note, tone))
    if changed["decisions"]:
        first, moved = changed["first_choice"], changed["moved_mass"]
        out += [
            Figure(
                "first choice changes",
                percent(first["share"]),
                f"{first['changed']:,} of {changed['decisions']:,} orders; {percent(first['low95'])} to {percent(first['high95'])}",
            ),
            Figure(
                "chosen mass that moves",
                percent(moved["mean"]),
                f"{percent(moved['low95'])} to {percent(moved['high95'])}",
            ),
            Figure("candidates newly dropped", f"{changed['newly_dropped']:,}"),
            Figure("candidates newly kept", f"{changed['newly_kept']:,}"),
        ]
    return out


def _charts(out: Page, found: Mapping[str, Any]) -> None:
    changed = found["changed"]
    causes = changed["by_cause"][:_MOST_GROUPS]
    if causes:
        out.chart(
            "By the change that did it",
            bars([one["cause"] for one in causes], [one["changed"] for one in causes], lying=True),
            note=f"Taking that change back, and no other, brings the old first choice back. {SEVERAL}: no change or more than one does so alone.",
            height=60 + 34 * max(len(causes), 4),
        )
    if (shift := changed["score_shift"])["counts"]:
        out.chart("Score shift", _histogram(shift), note=_shift_note(shift), height=60 + 34 * max(len(causes), 4))
    hours = changed["by_hour"]
    if len(hours) > 1:
        out.chart("By hour (UTC)", _shares([one["value"][5:] for one in hours], hours), note=_SHARE_NOTE)
    for name, groups in changed["by"].items():
        known = [one for one in groups if one["value"] is not None]
        if len(known) > 1:
            shown = known[:_MOST_GROUPS]
            more = f" The {len(shown)} of {len(known)} with the most changed orders." if len(known) > len(shown) else ""
            out.chart(f"By {name}", _shares([str(one["value"]) for one in shown], shown), note=_SHARE_NOTE + more)


def _shares(labels: Sequence[str], groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return shares(labels, [(one["share"], one["low95"], one["high95"]) for one in groups])


def _histogram(shift: Mapping[str, Any]) -> dict[str, Any]:
    edges = shift["edges"]
    labels = [f"{(low + high) / 2:.3g}" for low, high in pairwise(edges)]
    option = bars(labels, shift["counts"])
    option["series"][0] |= {"barCategoryGap": "4%", "barMaxWidth": 60}
    return option


def _shift_note(shift: Mapping[str, Any]) -> str:
    outside = shift["below"] + shift["above"]
    more = f"; {outside:,} are beyond the edges" if outside else ""
    return f"Score now minus score then of candidates kept both times; mean {shift['mean']:.4g}. {shift['unmoved']:,} of {shift['candidates']:,} did not move and are not drawn{more}."


def _fold(one: Telling, compiled: CompiledStrategy, old: CompiledStrategy | None) -> Fold:
    """Both first choices, as they were decided then and now."""
    decision = one.decision
    lines: list[str] = []
    for who, heading in ((one.then, "the first choice then"), (one.now, "the first choice now")):
        if who is None:
            lines += [f"{heading}: nobody", ""]
            continue
        for when, record, strategy in (("then", decision, old), ("now", one.again, compiled)):
            explained: Sequence[str] = explain(record, who, strategy).lines
            lines += [f"{heading}, {who}, {when}:", *(f"  {line}" for line in explained), ""]
    details = f" ({' + '.join(one.details)})" if one.cause == SEVERAL and one.details else ""
    title = f"order {decision.order_id}: {one.then or 'nobody'} → {one.now or 'nobody'}, moves {percent(one.moved)}{details}"
    lines.append(f"hailstream strategies explain {decision.decision_id}")
    return Fold(title=title, lines=lines, mark=one.cause)
