"""Version of this build, which nodes tell each other."""

VERSION = "0.1.0"
