"""What about a PostgreSQL database loses messages, or holds them up?"""
