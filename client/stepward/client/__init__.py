"""Submit jobs, watch them and operate a cluster, from Python or from the command line."""
