"""Redis as a broker: streams and consumer groups, and lists that were there before."""
