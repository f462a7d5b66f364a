"""Rows whose output a grammar guides: their masks, and draws that wait for them."""
