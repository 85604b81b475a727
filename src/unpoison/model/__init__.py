"""What a message, a failure, a verdict and a dead letter are. Plain values: nothing here decides anything or does I/O."""
