"""A temporary Slurm cluster on one machine, with Lmod, EasyBuild and Apptainer.

Demo, integration tests and benchmarks run on it. From a shell: ``python3 testbed --help``.
"""
