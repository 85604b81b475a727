"""The kit for brokers that move a message by a copy: store it, have it confirmed, let the original go."""
