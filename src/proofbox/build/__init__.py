"""Builds templates: recipes and Dockerfiles, run in sandboxes of our own, each step kept by what it was made from."""
