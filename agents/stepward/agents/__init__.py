"""Write agents: processes that take steps of jobs and do the work."""
