"""Where trials run: as processes of this machine, or later by a script for sbatch."""
