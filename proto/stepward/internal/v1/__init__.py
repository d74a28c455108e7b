"""What nodes of one cluster say to each other; not for anyone else."""
