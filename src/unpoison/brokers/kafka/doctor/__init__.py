"""What `unpoison doctor` looks for in Kafka."""
