"""The way of a message through the consumer, from fetch to settle."""
