"""Disposable services on this machine: PostgreSQL and a model server."""
