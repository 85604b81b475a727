"""The consumer's side of its workers.

The consumer hands batches of deliveries to its workers and collects how they ended. Workers never raise for what a
handler does: every bad end is a Failure.
"""
