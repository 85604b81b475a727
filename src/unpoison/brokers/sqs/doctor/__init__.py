"""What about SQS loses messages, or holds them up?"""
