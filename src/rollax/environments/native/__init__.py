"""Environments that are part of rollax."""
