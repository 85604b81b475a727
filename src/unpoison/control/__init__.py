"""Tells an outage, a throttle or a bad deploy from poison: state machines without a clock and without I/O."""
