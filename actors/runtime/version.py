"""This build's version, as nodes tell each other."""

VERSION = "0.1.0"
