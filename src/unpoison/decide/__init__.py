"""What becomes of a message: pure rules, no clock, no broker."""
