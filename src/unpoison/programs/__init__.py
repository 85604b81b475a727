"""Programs that the consumer starts as processes of their own; they import the user's app."""
