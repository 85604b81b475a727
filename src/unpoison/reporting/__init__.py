"""What the consumer counts, logs and tells."""
