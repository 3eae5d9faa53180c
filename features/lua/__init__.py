"""The scripts that run inside Redis, as text."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def script(name: str) -> bytes:
    """The text of `<name>.lua`."""
    return files(__package__).joinpath(f"{name}.lua").read_bytes()
