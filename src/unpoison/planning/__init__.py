"""Computes what retries cost, from settings alone: nothing is read, sent or run."""
