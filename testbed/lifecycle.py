"""Brings a testbed up and takes it down."""

from testbed import packages, recipes
from testbed.cluster import slurm
from testbed.environments import apptainer, python
from testbed.layout import TestbedError
from testbed.progress import step


def up(layout):
    """Install what is missing and start the cluster, unless it is up; return why containers cannot run here, or None.

    The venv modules work without containers. Raises TestbedError if the cluster cannot be installed or started.
    """
    layout.require_short_path()
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


def provide_environment(layout, name):
    """Install an environment for development, `test`, `release` or `website`, and return its directory."""
    layout.claim()
    venv = layout.root / f"{name}-venv"
    title, requirements = python.ENVIRONMENTS[name]
    with layout.locked(venv.name):
        packages.install_venv(layout)
        python.provide(layout, venv, requirements, title=title)
    return venv


def provide_optional(layout):
    """Install what some tests and benchmarks need, and are skipped without; return why that failed, or None."""
    layout.claim()
    with layout.locked("cluster"):
        return packages.install_optional(layout, packages.OPTIONAL_PACKAGES)


def provide_image(layout):
    """Install the container module, if `up` has found that containers can run here."""
    layout.require_claim()
    if (layout.bin / "singularity").exists():
        recipes.install(layout, recipes.CONTAINER)


def stop(layout):
    """Stop the cluster and delete its files; keep what is installed."""
    layout.require_claim()
    with layout.locked(), step("stopping the Slurm cluster"):
        slurm.stop(layout)


def down(layout):
    """Stop the cluster and delete the testbed."""
    layout.require_claim()
    with layout.locked():
        with step("stopping the Slurm cluster"):
            slurm.stop(layout)
        with step(f"removing {layout.root}"):
            layout.remove()
