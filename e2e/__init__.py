"""What crosses process borders: a local Kubernetes, PostgreSQL, a model server, images."""
