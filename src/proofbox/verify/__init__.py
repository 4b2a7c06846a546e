"""Judging a candidate where its code never ran."""
