"""What `bezoar doctor` looks for in Kafka."""
