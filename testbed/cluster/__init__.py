"""The Slurm cluster: four nodes on one machine."""
