"""The body of `stepward demo`: three trips on a cluster, agents and a travel service that it starts for them."""
