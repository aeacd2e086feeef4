"""Launchers of trials: on this machine, on a cluster, or as a script for sbatch."""
