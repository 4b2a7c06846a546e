"""Runs on disk: what was asked for, the log of what happened, large outputs, and the report over them."""
