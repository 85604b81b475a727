"""What about a Redis server loses messages, or holds them up?"""
