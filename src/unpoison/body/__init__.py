"""What is in a message: decoding, checking and encoding bodies."""
