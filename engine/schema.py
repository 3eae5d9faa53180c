"""The JSON Schema of a strategy file, made from the description that the loader checks with (`engine/sections.py`).

An editor with a YAML language server completes and checks a file that begins with

    # yaml-language-server: $schema=…/strategy.schema.json

`engine/strategy.schema.json` is the published text; `python -m engine.schema` writes it again, and a test holds that it is
up to date. The schema knows structure only; names, types of expressions and tables are the loader's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from engine.sections import STRATEGY

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
PUBLISHED: Final = Path(__file__).parent / "strategy.schema.json"


def strategy_schema() -> dict[str, Any]:
    """The schema as a JSON value."""
    return {
        "$schema": DIALECT,
        "title": "Hailstream strategy",
        "description": "One strategy: what a request carries, what is dropped, how the rest is scored and chosen among.",
        **STRATEGY.schema(),
    }


def schema_text() -> str:
    """The text that is published."""
    return json.dumps(strategy_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PUBLISHED.write_text(schema_text(), encoding="utf-8")
