"""Usage: python3 testbed up|status|env|stop|down|tools|optional|image

up        install what is missing and start the cluster, unless it is up
status    show whether the cluster is up, and its nodes (exit status 1 if it is down)
env       print shell code for `eval`, which provides module, eb, srun and singularity
stop      stop the cluster and delete its files; keep what is installed
down      stop the cluster and delete the testbed
tools     install what unit tests need; do not start the cluster
optional  install what some tests and benchmarks need: MPIs, a compiler, valgrind, podman
image     after `up`, install the container module that tests, demo and benchmarks use

The testbed is in $PYTORCH_TESTBED, or in .testbed of this checkout.
"""

import os
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])
from testbed import shell  # noqa: E402
from testbed.cluster import slurm  # noqa: E402
from testbed.layout import Layout, TestbedError  # noqa: E402
from testbed.lifecycle import down, provide_environment, provide_image, provide_optional, stop, up  # noqa: E402
from testbed.progress import exit_status  # noqa: E402

VERBS = {"up": up, "stop": stop, "down": down, "optional": provide_optional, "image": provide_image}


def main(arguments):
    """Run one verb; return the exit status."""
    layout = Layout.from_environment(os.environ)
    verb = arguments[0] if len(arguments) == 1 else ""
    if os.environ.get("SIFPYTORCH", "no module") == os.environ.get("APPTAINER_CONTAINER"):
        raise TestbedError("python3 runs in the image of the loaded module. Unload the PyTorch module.")
    if verb in VERBS:
        obstacle = VERBS[verb](layout)
        if obstacle:
            print(f"testbed: {obstacle}", file=sys.stderr)
    elif verb == "tools":
        provide_environment(layout, "test")
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
    return 0


if __name__ == "__main__":
    again = "Run the same command again to continue."
    sys.exit(exit_status(lambda: main(sys.argv[1:]), program="testbed", again=again))
