"""Checks of custom environments and algorithms."""
