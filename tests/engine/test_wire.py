"""engine/WIRE.md is what the engine does: its example, sent to an engine, gives its answer."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from engine.client import EngineClient

WIRE = Path(__file__).parents[2] / "engine" / "WIRE.md"


def example(name: str) -> Any:
    found = re.search(rf"```json {name}\n(.*?)```", WIRE.read_text(), re.DOTALL)
    assert found is not None, name
    return json.loads(found[1])


def test_the_documented_request_gets_the_documented_answer(client: EngineClient) -> None:
    answer = client.decide("express_dispatch", example("request"))
    documented = example("answer")
    answer.pop("strategy_hash")  # of the file's text: it changes with a comment
    documented.pop("strategy_hash")
    assert answer == documented
