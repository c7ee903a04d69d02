"""One target under libFuzzer, in a process of its own: `python -m tests.fuzz.one TARGET ITSELF [libFuzzer's words]`.

ITSELF is a program that does the same: libFuzzer starts itself again where it merges.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run until libFuzzer's time is over or a rule is broken."""
    import atheris

    name, *command = sys.argv[1:]
    with atheris.instrument_imports(include=["gateway"], enable_loader_override=False):
        from tests.fuzz.targets import TARGETS
    atheris.Setup(command, TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
