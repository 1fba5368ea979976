"""Brings a whole testbed up and takes it down again; called by ``demo``, the tests, and __main__."""

from testbed import packages
from testbed.cluster import slurm
from testbed.environments import apptainer, python
from testbed.layout import TestbedError
from testbed.progress import step


def up(layout):
    """Install what is missing and start the cluster; again: nothing to do.

    Returns
    -------
    str or None
        Why no container can run here, where that is so: the venv modules still work.

    Raises
    ------
    TestbedError
        With what to do, if the cluster cannot be had.
    """
    layout.claim()
    with layout.locked("cluster"):
        packages.install_venv(layout)
        packages.install_cluster(layout)
        python.provide_easybuild(layout)
        try:
            apptainer.provide(layout)
            obstacle = None
        except TestbedError as error:
            obstacle = str(error)
        slurm.start(layout)
    return obstacle


def provide_tools(layout):
    """Install what the unit tests need: an environment for the test runner."""
    layout.claim()
    with layout.locked("test-venv"):
        packages.install_venv(layout)
        python.provide_test_tools(layout)


def provide_optional(layout):
    """Install what some tests and benchmarks need: other launchers, and a counter of instructions.

    Returns
    -------
    str or None
        Why some of it is missing, where that is so: what needs it is left out.
    """
    layout.claim()
    with layout.locked("cluster"):
        return packages.install_optional(layout)


def stop(layout):
    """End the cluster and delete its files; what was installed stays."""
    layout.require_claim()
    with layout.locked(), step("stopping the Slurm cluster"):
        slurm.stop(layout)


def down(layout):
    """Leave no process and no file."""
    layout.require_claim()
    with layout.locked():
        with step("stopping the Slurm cluster"):
            slurm.stop(layout)
        with step(f"removing {layout.root}"):
            layout.remove()
