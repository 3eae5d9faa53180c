"""A report as one HTML file that needs no network: headline numbers, charts (Apache ECharts, inlined), tables, foldable texts.

    page = Page("Replay of express_dispatch", "version 14 against the log of version 13")
    page.figures([Figure("orders", "12,431")])
    page.chart("By hour", option)            # an ECharts option
    page.table("By rule", rows)              # rows with the same keys
    path.write_text(page.html())

Everything that is given is text: nothing of it is read as HTML. Colours follow the reader's light or dark setting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, Final

import msgspec

WEB: Final = Path(__file__).parent / "web"


@dataclass(frozen=True)
class Figure:
    """One headline number. `note` stands under it; `tone` is plain, good or bad."""

    label: str
    value: str
    note: str = ""
    tone: str = "plain"


@dataclass(frozen=True)
class Fold:
    """A line that opens: `lines` are shown as they are, in a fixed-width font."""

    title: str
    lines: Sequence[str]
    mark: str = ""


class Page:
    """Sections in the order in which they are added."""

    def __init__(self, title: str, subtitle: str = "") -> None:
        self._title, self._subtitle = title, subtitle
        self._parts: list[str] = []
        self._options: list[bytes] = []

    def figures(self, figures: Sequence[Figure]) -> None:
        cards = "".join(
            f'<div class="card {escape(one.tone)}"><div class="label">{escape(one.label)}</div>'
            f'<div class="value">{escape(one.value)}</div><div class="note">{escape(one.note)}</div></div>'
            for one in figures
        )
        self._parts.append(f'<section class="cards">{cards}</section>')

    def text(self, *paragraphs: str) -> None:
        self._parts.append("".join(f"<p>{escape(one)}</p>" for one in paragraphs))

    def chart(self, title: str, option: Mapping[str, Any], *, note: str = "", height: int = 300) -> None:
        """`option` is what ECharts takes; its own title and colours are left to the page."""
        number = len(self._options)
        self._options.append(msgspec.json.encode(option))
        self._parts.append(
            f'<section class="half"><h2>{escape(title)}</h2>{_note(note)}'
            f'<div class="chart" id="chart-{number}" style="height:{height}px"></div></section>'
        )

    def table(self, title: str, rows: Sequence[Mapping[str, Any]], *, note: str = "", empty: str = "nothing") -> None:
        """Numbers stand to the right. A value may be None (shown as a dash)."""
        if not rows:
            body = f"<p class=note>{escape(empty)}</p>"
        else:
            right = {name for row in rows for name, value in row.items() if _is_number(value)}
            head = "".join(
                f"<th{' class=number' if name in right else ''}>{escape(str(name))}</th>" for name in rows[0]
            )
            lines = "".join(f"<tr>{''.join(_cell(value) for value in row.values())}</tr>" for row in rows)
            body = f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'
        self._parts.append(f"<section><h2>{escape(title)}</h2>{_note(note)}{body}</section>")

    def folds(self, title: str, folds: Sequence[Fold], *, note: str = "") -> None:
        items = "".join(
            f'<details id="fold-{at}"><summary><span class="mark">{escape(one.mark)}</span>{escape(one.title)}</summary>'
            f"<pre>{escape(chr(10).join(one.lines))}</pre></details>"
            for at, one in enumerate(folds)
        )
        self._parts.append(f"<section><h2>{escape(title)}</h2>{_note(note)}{items}</section>")

    def html(self) -> str:
        options = ",".join(_in_script(option) for option in self._options)
        script = f"<script>{_echarts()}</script><script>{_SCRIPT.replace('/*options*/', options)}</script>"
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self._title)}</title><style>{_STYLE}</style></head><body><main>"
            f'<header><h1>{escape(self._title)}</h1><p class="note">{escape(self._subtitle)}</p></header>'
            f"{''.join(self._parts)}</main>{script if self._options else ''}</body></html>\n"
        )


def bars(labels: Sequence[str], values: Sequence[float], *, lying: bool = False) -> dict[str, Any]:
    """An option of one bar per label; `lying` for labels that are words, the first one on top."""
    words: dict[str, Any] = {
        "type": "category",
        "data": list(labels),
        "axisTick": {"show": False},
        "axisLabel": {"hideOverlap": True},
    }
    numbers: dict[str, Any] = {"type": "value", "minInterval": 1}
    grid: dict[str, Any] = {"left": 56, "right": 24, "top": 12, "bottom": 28}
    if lying:
        words |= {"inverse": True, "axisLabel": {"width": 190, "overflow": "truncate"}}
        grid["left"] = 20 + min(190, 8 * max(map(len, labels), default=0))
    return {
        "grid": grid,
        "tooltip": {"trigger": "axis", "axisPointer": {"type": "shadow"}},
        "xAxis": numbers if lying else words,
        "yAxis": words if lying else numbers,
        "series": [{"type": "bar", "data": list(values), "barMaxWidth": 26, "itemStyle": {"borderRadius": 2}}],
    }


def shares(labels: Sequence[str], values: Sequence[tuple[float, float, float]]) -> dict[str, Any]:
    """An option of one bar per label, in percent, with its interval; values are (share, low, high)."""
    percents = [tuple(round(100 * part, 3) for part in value) for value in values]
    option = bars(labels, [share for share, _, _ in percents])
    option["yAxis"] |= {"axisLabel": {"formatter": "{value} %"}, "minInterval": 0}
    option["series"][0] |= {"name": "share, %", "itemStyle": {"borderRadius": 2, "opacity": 0.75}}
    option["series"].append(
        {
            "name": "95 % interval",
            "type": "boxplot",
            "data": [[low, low, share, high, high] for share, low, high in percents],
            "boxWidth": [3, 6],
            "itemStyle": {"borderColor": "#7a8494", "color": "transparent"},
            "tooltip": {"show": False},
        }
    )
    return option


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>' if text else ""


def _cell(value: Any) -> str:
    if value is None:
        return '<td class="none">–</td>'
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (
            f'<td class="number">{value:,}</td>' if isinstance(value, int) else f'<td class="number">{value:.6g}</td>'
        )
    text = str(value)
    return f"<td{' class=number' if _is_number(text) else ''}>{escape(text)}</td>"


def _is_number(value: Any) -> bool:
    """Whether a value stands to the right: numbers, and shares as text."""
    return isinstance(value, int | float) or (isinstance(value, str) and value[:1].isdigit() and value.endswith("%"))


def _in_script(raw: bytes) -> str:
    """JSON that cannot end the script it stands in."""
    return raw.decode().replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@cache
def _echarts() -> str:
    return (WEB / "echarts.min.js").read_text(encoding="utf-8").replace("</script", "<\\/script")


_SCRIPT: Final = """
const options = [/*options*/];
const dark = matchMedia("(prefers-color-scheme: dark)");
let charts = [];
function draw() {
  charts.forEach(chart => chart.dispose());
  const ink = dark.matches ? "#c9ced6" : "#3a4250", line = dark.matches ? "#343b46" : "#e3e7ec";
  charts = options.map((option, at) => {
    const chart = echarts.init(document.getElementById("chart-" + at), null, {renderer: "svg"});
    const axis = one => ({...one, axisLabel: {color: ink, ...one.axisLabel}, nameTextStyle: {color: ink},
      axisLine: {lineStyle: {color: line}}, splitLine: {lineStyle: {color: line}}});
    chart.setOption({animation: false, color: ["#3b7dd8", "#e08b3e", "#5aa469", "#b65fb0"],
      textStyle: {fontFamily: "inherit"}, ...option,
      ...(option.legend ? {legend: {textStyle: {color: ink}, ...option.legend}} : {}),
      ...(option.xAxis ? {xAxis: axis(option.xAxis)} : {}), ...(option.yAxis ? {yAxis: axis(option.yAxis)} : {})});
    return chart;
  });
}
draw();
dark.addEventListener("change", draw);
addEventListener("resize", () => charts.forEach(chart => chart.resize()));
"""

_STYLE: Final = """
:root { color-scheme: light dark; --back: #f6f7f9; --sheet: #fff; --ink: #1d2430; --dim: #667080; --line: #e3e7ec;
  --good: #2e7d4f; --bad: #c0392b; }
@media (prefers-color-scheme: dark) { :root { --back: #14171c; --sheet: #1c2027; --ink: #e6e9ee; --dim: #98a2b0;
  --line: #2e343e; --good: #6fc492; --bad: #ef7f72; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 20px 60px; display: grid; gap: 16px;
  grid-template-columns: repeat(2, minmax(0, 1fr)); }
main > * { grid-column: 1 / -1; min-width: 0; }
main > .half { grid-column: span 1; }
@media (max-width: 860px) { main > .half { grid-column: 1 / -1; } }
h1 { font-size: 26px; margin: 0; } h2 { font-size: 16px; margin: 0 0 6px; }
p { margin: 0 0 6px; } .note { color: var(--dim); font-size: 13px; margin: 0 0 8px; max-width: 90ch; }
section { background: var(--sheet); border: 1px solid var(--line); border-radius: 8px; padding: 16px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); gap: 12px; background: none; border: 0;
  padding: 0; }
.card { background: var(--sheet); border: 1px solid var(--line); border-radius: 8px; padding: 12px 16px; }
.label { color: var(--dim); font-size: 13px; } .value { font-size: 26px; font-weight: 600; }
.card .note { margin: 0; } .good .value { color: var(--good); } .bad .value { color: var(--bad); }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--dim); font-weight: 500; } .number { text-align: right; font-variant-numeric: tabular-nums; }
.none { color: var(--dim); text-align: right; }
details { border-top: 1px solid var(--line); padding: 6px 0; } summary { cursor: pointer; }
.mark { display: inline-block; min-width: 190px; padding-right: 12px; color: var(--dim); }
pre { margin: 8px 0; padding: 12px; background: var(--back); border-radius: 6px; overflow-x: auto; white-space: pre-wrap;
  font: 13px/1.5 ui-monospace, monospace; }
"""
