"""Tuned settings (presets): one YAML file per algorithm, keyed by environment id or pattern."""
