"""The commands of README.md and docs/*.md run as they are written, against the shared stack.

Every ```bash block of a guide runs in order in one shell, in an empty folder of its own, with `hailstream` on PATH and the
shared stack as HAILSTREAM_HOME. What a block starts in the background is ended with the shell.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from infra.local.stack import Stack

ROOT = Path(__file__).resolve().parents[2]
GUIDES = sorted((ROOT / "docs").glob("*.md"))
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)")


def blocks(page: Path) -> list[str]:
    return BLOCK.findall(page.read_text())


def test_there_is_a_guide_for_each_role() -> None:
    roles = {"feature-author", "strategy-author", "dispatch-caller", "operator", "data-scientist"}
    assert {page.stem for page in GUIDES} >= roles
    assert all(blocks(page) for page in GUIDES)


@pytest.mark.parametrize("page", [ROOT / "README.md", *GUIDES], ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    broken = [target for target in LINK.findall(page.read_text()) if not (page.parent / target).exists()]
    assert broken == []


def test_readme_names_the_two_commands_and_make_knows_them() -> None:
    commands = [line.split("#")[0].strip() for block in blocks(ROOT / "README.md") for line in block.splitlines()]
    assert commands == ["make demo", "make test"]
    for command in commands:
        subprocess.run([*command.split(), "--dry-run"], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.services
@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_a_guides_commands_run(page: Path, stack: Stack, tmp_path: Path) -> None:
    script = "set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n" + "\n".join(blocks(page))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "HAILSTREAM_HOME": str(stack.folder), "HAILSTREAM_ACTOR": "docs", "TERM": "dumb"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, f"{page.name}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
