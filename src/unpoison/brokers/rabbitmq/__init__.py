"""RabbitMQ, versions 3.10 to 4.x, quorum and classic queues."""
