"""Agents: what decides the actions of a trial."""
