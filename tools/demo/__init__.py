"""The main job on a fresh machine: from nothing to a served and recorded request."""
