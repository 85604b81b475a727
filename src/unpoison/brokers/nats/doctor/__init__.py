"""What about NATS loses messages, or holds them up?"""
