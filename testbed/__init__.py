"""A throw-away Slurm cluster with Lmod, EasyBuild and Apptainer on one machine.

Used by ``demo``, by the integration tests and by the benchmarks; from a shell:
``python3 testbed up|down|stop|status|env``.
"""
