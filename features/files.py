"""Files that others read while they are written: the old bytes or the new ones, whole."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, raw: bytes) -> None:
    """Replace a file by one rename, on disk before it is visible. One writer at a time: what a killed one left aside is
    written over."""
    aside = path.with_name(f".tmp-{path.name}")
    with aside.open("wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
