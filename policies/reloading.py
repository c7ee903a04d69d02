"""A bundle's folder that changes while it judges: what is new, once it has come to rest, and whether it may judge.

A bundle that can't be used changes nothing: the one before it stays in force, and it is said why. Files are looked
at, not waited for: the system's notifications do not cross every kind of mount.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from policies.bundles import Bundle, load_bundle
from policies.rego_tests import run_bundle_tests
from policies.verdict import PolicyUnavailable

LOOK_EVERY_S = 1.0
TEST_S = 2.0  # of one Rego test
TESTS_S = 30.0  # of all of them
AGAIN_S = 60.0  # what failed is tried again, for it may have been the machine
MOST_FILES = 10_000
LONGEST_WHY = 2000


def tell(error: PolicyUnavailable | OSError) -> str:
    """Why, as text that can be written anywhere: a file's name may be no UTF-8, and a test's of any length."""
    return str(error).encode(errors="backslashreplace").decode()[:LONGEST_WHY]


@dataclass(frozen=True, slots=True)
class Replaced:
    """What became of a bundle that was found: `why` it does not judge, `""` if it does.

    `before` and `after` are revisions: that which judged, and that of what was found (`""`: it could not be read).
    """

    before: str
    after: str
    why: str = ""


Stamp = tuple[tuple[str, int, int, int], ...]


class Folder:
    """The folder at `path` and what was seen in it last. Everything here is blocking: call it in a thread."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._taken: Stamp | None = None
        self._seen: Stamp | None = None
        self._again_at = math.inf  # monotonic

    def load(self) -> Bundle:
        """The bundle that lies there now. Raises `PolicyUnavailable` naming the file."""
        self._taken = self._seen = self._look()
        return load_bundle(self._path)

    def load_if_changed(self) -> Bundle | None:
        """The bundle, where its files changed and were the same at two looks in a row; else `None`.

        Raises `PolicyUnavailable` as `load`: once for what lies there.
        """
        now = self._look()
        rested, self._seen = now == self._seen, now
        if time.monotonic() >= self._again_at:
            self._taken = None
        if now == self._taken or not rested:
            return None
        self._taken, self._again_at = now, math.inf
        bundle = load_bundle(self._path)
        if self._look() != now:
            self._taken = None  # somebody is writing: what was read may be half of each
            return None
        return bundle

    def try_again_later(self) -> None:
        """What was loaded last could not be used: it is to be found changed once more, though it may be the same."""
        self._again_at = time.monotonic() + AGAIN_S

    def _look(self) -> Stamp:
        """Name, time, size and inode of every file, links followed (a mounted ConfigMap is a link to a folder).

        Hidden ones are left out, as `load_bundle` does: a checkout's history, an editor's drafts. Raises
        `PolicyUnavailable` where there are so many that a change could be missed.
        """
        found: list[tuple[str, int, int, int]] = []
        for folder, folders, names in os.walk(self._path, followlinks=True):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                if name.startswith(".") and name != ".manifest":
                    continue
                try:
                    state = os.stat(os.path.join(folder, name))  # noqa: PTH116, PTH118 - many files, every second
                except OSError:
                    continue
                found.append((f"{folder}/{name}", state.st_mtime_ns, state.st_size, state.st_ino))
            if len(found) > MOST_FILES:
                raise PolicyUnavailable(f"{self._path}: more than {MOST_FILES} files, which can't be watched")
        return tuple(sorted(found))


def prove(bundle: Bundle, given_up: Callable[[], bool]) -> None:
    """Run a bundle's own Rego tests (blocking). Raises `PolicyUnavailable` naming the first that does not hold."""
    if not bundle.tests:
        return
    end = time.monotonic() + TESTS_S
    outcomes = run_bundle_tests(bundle, timeout_s=TEST_S, given_up=lambda: given_up() or time.monotonic() > end)
    failed = [outcome for outcome in outcomes if not outcome.passed]
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise PolicyUnavailable(f"its own test {failed[0].name} does not hold: {failed[0].why}{more}")


def compare(live: Bundle, found: Bundle) -> bool:
    """Whether `found` is another bundle. Raises `PolicyUnavailable` where the record could not tell them apart."""
    same = (live.modules, live.data) == (found.modules, found.data)
    if not same and live.revision == found.revision:
        raise PolicyUnavailable(f".manifest: the files changed and `revision` is still {found.revision}")
    return not same or live.revision != found.revision
