"""Environments that ship with rollax."""
