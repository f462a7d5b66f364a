"""Sequences in rows: from plans to the packed inputs of steps."""
