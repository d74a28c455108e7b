"""Measures a cluster from outside: through the client, over real sockets, with every write flushed."""
