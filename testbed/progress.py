"""Reports progress and runs commands."""

import contextlib
import signal
import subprocess
import sys
import time

from testbed.layout import TestbedError


def exit_status(main, *, program, again):
    """Call a program's `main`; return its exit status. An error or an interruption is one line, with `again`."""
    for sign in (signal.SIGTERM, signal.SIGHUP):  # a lost terminal and `kill` are like Ctrl-C: the program cleans up
        signal.signal(sign, signal.default_int_handler)
    try:
        return main()
    except (TestbedError, OSError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{program}: interrupted. {again}", file=sys.stderr)
        return 130


@contextlib.contextmanager
def step(title):
    """Print a step's title when it begins, and at its end the time that it took.

    Prints to standard error, as a shell evaluates the standard output of ``demo --env``.
    """
    start = time.monotonic()
    verdict = "failed"
    print(f"  {title} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
        verdict = "done"
    finally:
        print(f" {verdict} ({time.monotonic() - start:.0f} s)", file=sys.stderr, flush=True)


def run(command, *, log=None, advice="", **options):
    """Run `command` (a list) quietly; return its output. Write the output to `log`, if given.

    If the command fails, raises TestbedError with `advice` and the last lines of the output.
    """
    try:
        result = subprocess.run(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            check=False,
            **options,
        )
    except OSError as error:
        raise TestbedError(f"`{command[0]}` cannot be started: {error}. {advice}") from error
    if log:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(result.stdout)
    if result.returncode:
        tail = "\n    ".join(result.stdout.strip().splitlines()[-8:])
        kept = f" The full output is in {log}." if log else ""
        raise TestbedError(
            f"`{' '.join(map(str, command[:4]))} ...` failed with status {result.returncode}. "
            f"{advice}{kept}\n    {tail}"
        )
    return result.stdout
