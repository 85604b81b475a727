"""What loses or loops messages, before it does?"""
