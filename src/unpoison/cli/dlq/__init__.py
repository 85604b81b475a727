"""The commands for dead letters."""
