"""What the outside sees of the consumers of a process: metrics, health, a sign that it lives."""
