"""The commands of `pageant`, one module each."""
