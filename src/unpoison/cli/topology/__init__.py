"""What must an administrator create or grant for an app?"""
