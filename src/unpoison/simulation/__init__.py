"""Runs the real consumer against an outage, a bad deploy, a throttle or poison that is made up, on a clock that is made up."""
