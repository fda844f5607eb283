"""The demo: from an empty machine to a served request with its usage row."""
