"""The files of the decision log: records framed with their length and a checksum, appended, read back, moved aside.

`engine/decision_log.py` says which file is written and sent when.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

logger = logging.getLogger(__name__)

_HEADER: Final = struct.Struct("<III")  # length of key, length of value, CRC-32 of both


@dataclass
class Segment:
    """One spill file and how far it got. What stands below `closed` belongs to the sending thread."""

    path: Path
    size: int = 0
    num_records: int = 0
    torn: bool = False  # the last record was cut off by a death in the middle of it
    closed: bool = False
    reader: IO[bytes] | None = None
    read_at: int = 0
    num_settled: int = 0  # acknowledged or moved aside


def own(directory: Path) -> IO[str]:
    """Lock the folder until the file returned is closed. Raises: RuntimeError when another process has it."""
    owner = (directory / "owner.lock").open("w")
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        owner.close()
        raise RuntimeError(
            f"another engine owns the decision log in {directory}: stop it, or give this one a folder of its own"
        ) from None
    return owner


def open_segment(directory: Path, number: int) -> tuple[int, Segment]:
    """A new file for appending: its descriptor, and what is known of it."""
    path = directory / f"{number:012d}.spill"
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o600), Segment(path=path)


def left_over(path: Path) -> Segment:
    """A file of an earlier process: its records counted, a torn last one cut off."""
    raw = path.read_bytes()
    ends = [end for _key, _value, end in _records(raw)]
    size = ends[-1] if ends else 0
    if size < len(raw):
        logger.warning("%s: %d bytes of a torn record at offset %d were left out", path, len(raw) - size, size)
    return Segment(path=path, size=size, num_records=len(ends), torn=size < len(raw), closed=True)


def framed(key: bytes, value: bytes) -> bytes:
    """One record as it stands in a file."""
    return _HEADER.pack(len(key), len(value), zlib.crc32(value, zlib.crc32(key))) + key + value


def unread(segment: Segment) -> Iterator[tuple[bytes, bytes]]:
    """The records of a file that were not read yet, up to the size the writer has published."""
    size = segment.size
    if segment.read_at >= size:
        return
    if segment.reader is None:
        segment.reader = segment.path.open("rb", buffering=0)
    segment.reader.seek(segment.read_at)
    raw = segment.reader.read(size - segment.read_at)
    base = segment.read_at
    for key, value, end in _records(raw):
        segment.read_at = base + end
        yield key, value


def set_aside(directory: Path, key: bytes, value: bytes) -> Path:
    """Keep one record in a file of its own, named by its content: refused again after a restart, it is the same file.

    A `.refused` file has the form of a spill file: once the limit is raised, renamed to a free number and `.spill` it
    is sent by the next start.
    """
    raw = framed(key, value)
    path = directory / f"{hashlib.blake2b(raw, digest_size=8).hexdigest()}.refused"
    aside = path.with_suffix(".part")
    with aside.open("wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    return path


def read_spilled(directory: Path) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) of every whole record in the spill files of a folder, oldest first; for tools and tests."""
    return _read(directory, "*.spill")


def read_refused(directory: Path) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) of every record that was moved aside because it could never be sent."""
    return _read(directory, "*.refused")


def _read(directory: Path, pattern: str) -> Iterator[tuple[bytes, bytes]]:
    for path in sorted(directory.glob(pattern)):
        for key, value, _end in _records(path.read_bytes()):
            yield key, value


def _records(raw: bytes) -> Iterator[tuple[bytes, bytes, int]]:
    """Key, value and end offset of each whole record; stops at the first that is not."""
    at = 0
    while at + _HEADER.size <= len(raw):
        num_key, num_value, crc = _HEADER.unpack_from(raw, at)
        start, middle = at + _HEADER.size, at + _HEADER.size + num_key
        at = middle + num_value
        if at > len(raw):
            return
        key, value = raw[start:middle], raw[middle:at]
        if zlib.crc32(value, zlib.crc32(key)) != crc:
            return
        yield key, value, at
