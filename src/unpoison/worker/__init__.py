"""Inside a worker process: how it is set up, and the loops that call handlers."""
