"""Amazon SQS, and servers that speak its language, as a broker."""
