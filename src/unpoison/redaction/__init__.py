"""What of a dead letter must not stand in the store: found, masked, and kept encrypted or not at all."""
