"""Checks of what users bring: their environments and their algorithms."""
