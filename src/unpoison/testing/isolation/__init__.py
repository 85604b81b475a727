"""With what are isolated workers put to the test? With real processes, real kills, and handlers that really crash."""
