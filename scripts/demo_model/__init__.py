"""The packaged demo model: how its text is gathered, how it is trained, and how it is checked."""
