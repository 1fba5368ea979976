# SPDX-License-Identifier: GPL-2.0-only
"""
Apptainer or Singularity: which one this host has, and commands that enter an image with it.
"""
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import which

RUNTIMES = ('singularity', 'apptainer')


def find_runtime():
    """Command of the container runtime on this host; None if it has none."""
    return next((runtime for runtime in RUNTIMES if which(runtime)), None)


def require_runtime(runtime):
    """Stop if the host has no container runtime."""
    if not runtime:
        raise EasyBuildError("%s not found on PATH. Install Apptainer or load its module", ' and '.join(RUNTIMES))


def runtime_variables(**settings):
    """Settings of the container runtime as environment variables, with both prefixes; it ignores unknown ones."""
    return {'%s_%s' % (runtime, name): value for name, value in settings.items()
            for runtime in ('APPTAINER', 'SINGULARITY')}


def image_python(runtime, image, conda_activation, *options):
    """
    Command of an image's Python, that of its conda environment if it has one.

    :param conda_activation: the recipe's command that activates the environment; that of the image runs before it
    :param options: options of the runtime's `exec`
    """
    script = 'eval "${WITH_CONDA:-}"; %s; exec "$0" "$@"' % conda_activation
    return [runtime, 'exec', *options, image, 'bash', '-c', script, 'python3']
