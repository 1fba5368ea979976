"""Usage: python3 testbed up|status|env|stop|down|tools|optional

up        install what is missing, start the cluster; again: nothing to do
status    say whether it is up, and with which nodes (status 1 when it is down)
env       print shell code for `eval` that gives module, eb, srun, singularity
stop      end the cluster's processes and delete its files; what was installed stays
down      stop, and delete the whole testbed directory
tools     install what ./run-tests needs, without starting the cluster
optional  install what some tests and benchmarks need: Open MPI, MPICH, valgrind, an OCI registry

The directory is $PYTORCH_TESTBED, else .testbed in this checkout.
"""

import os
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])
from testbed import shell  # noqa: E402
from testbed.cluster import slurm  # noqa: E402
from testbed.layout import Layout, TestbedError  # noqa: E402
from testbed.lifecycle import down, provide_optional, provide_tools, stop, up  # noqa: E402
from testbed.progress import end_like_interrupt  # noqa: E402


def main(arguments):
    """Run one verb; return the exit status."""
    end_like_interrupt()
    layout = Layout.from_environment(os.environ)
    verb = arguments[0] if len(arguments) == 1 else ""
    try:
        if os.environ.get("SIFPYTORCH", "no module") == os.environ.get("APPTAINER_CONTAINER"):
            raise TestbedError("This python3 is the loaded module's, in its image. Unload the PyTorch module.")
        if verb == "up":
            obstacle = up(layout)
            if obstacle:
                print(f"No containers here: {obstacle}", file=sys.stderr)
        elif verb == "down":
            down(layout)
        elif verb == "tools":
            provide_tools(layout)
        elif verb == "optional":
            obstacle = provide_optional(layout)
            if obstacle:
                print(f"Some tests and benchmarks will be left out: {obstacle}", file=sys.stderr)
        elif verb == "stop":
            stop(layout)
        elif verb == "status":
            line = slurm.status(layout)
            print(f"{layout.root}: {line}")
            return 1 if line == "down" else 0
        elif verb == "env":
            layout.require_claim()
            print(shell.environment_code(layout))
        elif verb == "--help":
            print(__doc__)
        else:
            print(__doc__, file=sys.stderr)
            return 2
    except TestbedError as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("testbed: interrupted; the same command goes on where it stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
