"""Services that run on this machine, thrown away after use: PostgreSQL and a model server."""
