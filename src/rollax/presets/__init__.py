"""Tuned settings by algorithm and environment."""
