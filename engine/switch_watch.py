"""The switches file of a folder, kept up to date: the last good one stays, and without a good one nothing is known."""

from __future__ import annotations

import logging
from pathlib import Path

from engine.switches import SWITCHES, SwitchError, Switches, read_switches

logger = logging.getLogger(__name__)


class SwitchWatch:
    """`switches` is None until the file could be read once: then nobody knows what must not run. `error` is what is wrong.

    A file that is gone after it switched something off is an error, too: whoever wants that says `revive`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.switches: Switches | None = None
        self.error = ""
        self._look: tuple[int, ...] | str | None = None
        self._looked = False

    def refresh(self) -> None:
        """Look once."""
        look = self._look_at_file()
        if self._looked and look == self._look and not self.error:
            return
        try:
            if look is None and self.switches is not None and self.switches.killed:
                raise SwitchError(
                    f"{self.folder / SWITCHES} is gone; its {len(self.switches.killed)} switches stay off until it is back"
                )
            found = read_switches(self.folder)
        except SwitchError as error:
            self._note(str(error))
        else:
            self._note("")
            self._say(found)
            self.switches = found
        self._look, self._looked = look, True

    def _look_at_file(self) -> tuple[int, ...] | str | None:
        """What the file looks like, None without one, a text when that cannot be said."""
        try:
            stat = (self.folder / SWITCHES).stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            return str(error)
        return (stat.st_mtime_ns, stat.st_size, stat.st_ino)

    def _note(self, error: str) -> None:
        if error and error != self.error:
            stay = "nothing is decided" if self.switches is None else "the last good switches stay"
            logger.error("%s (%s)", error, stay)
        self.error = error

    def _say(self, found: Switches) -> None:
        before = self.switches.killed if self.switches is not None else {}
        for target in set(found.killed) - set(before):
            switch = found.killed[target]
            logger.warning("killed: %s by %s: %s", target, switch.actor, switch.reason)
        for target in set(before) - set(found.killed):
            logger.warning("revived: %s", target)
