"""Attacks on the isolation itself: each is made for real from inside a sandbox, and has to fail. A file each kind."""
