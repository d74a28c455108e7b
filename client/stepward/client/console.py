"""The program `stepward`: loads the command line, and ends it in a line where Python would print where it was."""

from __future__ import annotations

import errno
import os
import signal
import sys

# What a write to a full or broken disk fails with. A closed pipe is not among them: click ends quietly then.
UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def main() -> None:
    """Load the command line and run it.

    While it loads, a Ctrl-C ends the process as the system does by itself. Who started us deaf to it, as nohup does,
    gets what he asked for.
    """
    heard = signal.getsignal(signal.SIGINT)
    if heard is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from stepward.client.cli import ExitCode
    from stepward.client.cli import main as command_line

    signal.signal(signal.SIGINT, heard)
    try:
        command_line()
    except OSError as error:
        if error.errno not in UNWRITABLE or error.filename is not None:
            raise
        _give_up_stdout()
        sys.stderr.write(f"error: the output cannot be written: {error.strerror}\n")
        sys.exit(ExitCode.ERROR)


def _give_up_stdout() -> None:
    """Let what is still in its buffer go nowhere; else Python would try once more at its end, and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


if __name__ == "__main__":
    main()
