"""All experiments, in the order of the table; each file holds those of one subject."""

from benchmarks.experiments import filesystem, imports, install, install_image, job, launch, modules, training

EXPERIMENTS = (
    *launch.EXPERIMENTS,
    *job.EXPERIMENTS,
    *imports.EXPERIMENTS,
    *filesystem.EXPERIMENTS,
    *modules.EXPERIMENTS,
    *install.EXPERIMENTS,
    *install_image.EXPERIMENTS,
    *training.EXPERIMENTS,
)
#: Every row that there can be.
COMPARISONS = tuple(comparison for experiment in EXPERIMENTS for comparison in experiment.comparisons)
