"""Counts and log lines."""
