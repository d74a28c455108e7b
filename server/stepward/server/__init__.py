"""The stepward server: a replicated store that hosts the scheduler and the supervisor."""
