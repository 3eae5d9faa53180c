"""YAML with places: YAML 1.2 scalars, mistakes with their fix, and expressions that keep their absolute place."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from features.expr import INT, Mistakes, SourceText, compile_expr
from features.yaml_source import MapNode, Node, ScalarNode, SeqNode, load_yaml, mistake, parse_yaml

GOLDEN = Path(__file__).parents[1] / "golden" / "expr"


def scalar(text: str, key: str = "a") -> ScalarNode:
    root = parse_yaml(text, "f.yaml")
    assert isinstance(root, MapNode)
    node = root.get(key)
    assert isinstance(node, ScalarNode)
    return node


def plain(node: Node) -> Any:
    if isinstance(node, ScalarNode):
        return node.value
    if isinstance(node, SeqNode):
        return [plain(item) for item in node]
    assert isinstance(node, MapNode)
    return {key.text: plain(value) for key, value in node.items()}


def mistakes_of(text: str) -> Mistakes:
    with pytest.raises(Mistakes) as caught:
        parse_yaml(text, "f.yaml")
    return caught.value


def test_scalars_follow_the_core_schema_of_yaml_1_2() -> None:
    text = "[yes, no, on, OFF, y, 010, 0o17, 0x1F, 1_000, 12:30:45, 1e3, -.inf, .5, 2024-01-01, ~, null, TRUE, '1', \"true\", 1.0, -7]"
    expected = ["yes", "no", "on", "OFF", "y", 10, 15, 31, "1_000", "12:30:45", 1000.0, -math.inf, 0.5, "2024-01-01"]
    assert plain(parse_yaml(text)) == [*expected, None, None, True, "1", "true", 1.0, -7]
    assert math.isnan(plain(parse_yaml(".nan")))


def test_nodes_know_their_place() -> None:
    root = parse_yaml("a:\n  - {b: 1,\n     cc: 'two'}\n", "f.yaml")
    assert isinstance(root, MapNode)
    (key, items), *rest = root.items()
    assert not rest and (key.line, key.col, key.end_col) == (1, 1, 2)
    assert isinstance(items, SeqNode) and isinstance(items.items[0], MapNode)
    entry = items.items[0]
    cc = entry.get("cc")
    assert isinstance(cc, ScalarNode) and (cc.line, cc.col, cc.end_col, cc.value) == (3, 10, 15, "two")
    assert entry.get("nope") is None and entry.key("b") is not None and len(entry) == 2
    assert mistake(cc, "kind", "bad", "do better").format() == (
        "f.yaml:3:10: bad\n 3 |      cc: 'two'}\n   |          ^^^^^\n do better"
    )


def test_an_empty_document_is_null_at_its_start() -> None:
    for text in ("", "# only a comment\n", "---\n"):
        node = parse_yaml(text)
        assert isinstance(node, ScalarNode) and node.value is None and node.line >= 1


STYLES = {
    "plain": "a: i > 1 && nope == 2\n",
    "plain_folded": "a: i > 1\n   &&\n   nope == 2\n",
    "single": "a: 'i > 1 && \"it''s\" != \"\" && nope == 2'\n",
    "single_folded": "a: 'i > 1\n\n   && nope == 2'\n",
    "double": "a: \"i > 1 && '\\u00e9\\x41\\t' != '' && nope == 2\"\n",
    "double_folded": 'a: "i > 1 \\\n     &&\n   nope == 2"\n',
    "literal": "a: |\n   i > 1\n     && nope == 2\n",
    "literal_stripped": "a: |2-   # why\n      i > 1 &&\n    nope == 2\n\n",
    "folded": "a: >-\n   i > 1\n   &&\n   nope == 2\n",
    "folded_more_indented": "a: >\n   i > 1 &&\n     (1 < 2) &&\n\n   nope == 2\n",
    "flow": "{b: [1, 2], a: i > 1 && nope == 2}\n",
    "wide": "a: i > 1 && '🐱é' != '' && nope == 2\n",
    "crlf": "b: 1\r\na: |\r\n  i > 1\r\n  && nope == 2\r\n",
    "deep": "b:\n  - c: 1\na: >\n    i > 1 &&\n    nope == 2\n",
}


@pytest.mark.parametrize("style", STYLES)
def test_an_expression_keeps_its_place_in_every_style(style: str) -> None:
    """The mistake about `nope` stands where `nope` stands in the file."""
    text = STYLES[style]
    lines = text.replace("\r\n", "\n").split("\n")
    line = next(number for number, content in enumerate(lines, start=1) if "nope" in content)
    col = lines[line - 1].index("nope") + 1
    with pytest.raises(Mistakes) as caught:
        compile_expr(scalar(text).source(), {"i": INT})
    (item,) = caught.value.items
    assert (item.file, item.line, item.col, item.end_col) == ("f.yaml", line, col, col + 4)
    assert item.source_line == lines[line - 1]


@pytest.mark.parametrize("style", STYLES)
def test_every_character_of_a_scalar_is_found_where_it_stands(style: str) -> None:
    text = STYLES[style].replace("\r\n", "\n")
    lines = text.split("\n")
    source = scalar(text).source()
    for offset, char in enumerate(source.text):
        line, col = source.place(offset)
        found = lines[line - 1][col - 1 : col]
        assert found == char or char.isspace() or found == "\\", (offset, char, line, col)


def test_numbers_and_booleans_are_expressions_too() -> None:
    for text in ("a: 1", "a: 1.50", "a: true"):
        node = scalar(text)
        assert node.text == text[3:] and node.source().place(0) == (1, 4)
        compile_expr(node.source(), {})


def test_mistakes_and_traps_are_golden() -> None:
    blocks = (GOLDEN / "yaml_errors.txt").read_text(encoding="utf-8").rstrip("\n").split("\n====\n")
    assert len(blocks) > 15
    for block in blocks:
        text, _, expected = block.partition("\n----\n")
        assert str(mistakes_of(text)) == expected


@pytest.mark.parametrize(
    "text",
    ["a: x > 3 # a comment", "a: driver's state", "a: 'a ? b : c'", "a: |\n  !x ? y : z # kept", "a: has(x)", "a: -x", "a: state != 'idle'",
     "a: why not? because", "a: x ?? y", "a: {b: 'x ?? y'}", "a: 'x == \"a #1\"'", "a: x == 'a#1'"],
)  # fmt: skip
def test_what_is_not_a_trap_passes(text: str) -> None:
    assert scalar(text, "a") if "{" not in text else parse_yaml(text)


def test_all_mistakes_of_a_file_come_together() -> None:
    items = mistakes_of("a: 1\na: 2\nb: !x 3\nc: {d: 1, d: 2}\ne: &f 1\n").items
    assert [(item.kind, item.line) for item in items] == [
        ("duplicate-key", 2),
        ("yaml-trap", 3),
        ("duplicate-key", 4),
        ("anchor", 5),
    ]


def test_files_are_read_as_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: \xc3\xa9\n")
    assert plain(load_yaml(path)) == {"a": "é"}
    path.write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(Mistakes, match=r"views/a\.yaml:2:4: byte 0xff is not UTF-8"):
        load_yaml(path, name="views/a.yaml")
    with pytest.raises(FileNotFoundError):
        load_yaml(tmp_path / "none.yaml")


def test_hostile_yaml_is_refused_not_crashed_on() -> None:
    bombs = [
        "[" * 5_000,
        "{a: " * 3_000,
        "a: !!python/object/apply:os.system ['true']",
        "a: &x [*x]",
        "--- 1\n--- 2",
        "%YAML 9\n---\n1",
        "a: \0",
    ]
    for text in bombs:
        assert mistakes_of(text).items
    assert plain(parse_yaml("a: " + "9" * 5_000)) == {"a": "9" * 5_000}


def test_source_text_counts_lines_of_its_own_text() -> None:
    source = SourceText("ab\n cd", "f", 3, 5)
    assert [source.place(offset) for offset in (0, 2, 3, 4, 6)] == [(3, 5), (3, 7), (4, 1), (4, 2), (4, 4)]
    assert source.span(0, 6) == (3, 5, 7) and source.line_text(3) == "    ab" and source.line_text(4) == " cd"


def test_random_text_in_random_styles_keeps_its_places() -> None:
    """PyYAML writes the text, folded at some width; every character that is not white space is found where it stands."""
    seed = 20260806
    print(f"seed {seed}")
    rng = random.Random(seed)
    words = [
        "a",
        "&&",
        "x.y",
        "'it''s'",
        '"q"',
        "!b",
        "#c",
        ":",
        "??",
        "{",
        "}",
        "é",
        "🐱",
        "\\n",
        "\t",
        "- z",
        "|",
        "%",
    ]
    for _ in range(400):
        text = "".join(
            rng.choice(words) + rng.choice([" ", " ", "  ", "\n", "\n  "]) for _ in range(rng.randrange(1, 30))
        )
        style, width, indent = rng.choice([None, "'", '"', "|", ">"]), rng.choice([10, 30, 200]), rng.choice([2, 4])
        written = yaml.safe_dump(
            {"b": {"a": text}}, default_style=style, width=width, indent=indent, allow_unicode=rng.random() < 0.5
        )
        lines = written.split("\n")
        root = parse_yaml(written)
        assert isinstance(root, MapNode)
        inner = root.get("b")
        assert isinstance(inner, MapNode)
        node = inner.get("a")
        assert isinstance(node, ScalarNode)
        assert node.text == yaml.safe_load(written)["b"]["a"]  # its writer folds some texts into others
        for offset, char in enumerate(node.text):
            line, col = node.source().place(offset)
            found = lines[line - 1][col - 1 : col]
            assert found == char or char.isspace() or found == "\\", (written, offset, char, line, col)
