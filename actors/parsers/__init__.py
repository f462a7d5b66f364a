"""Parsers of what models write: one file for each format, `base` what they have in common."""
