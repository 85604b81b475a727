"""What about a RabbitMQ server, or the queues on it, loses messages or holds them up?"""
