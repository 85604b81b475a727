"""Kafka: consumer groups, with attempts and suspects in the metadata of the committed offsets."""
