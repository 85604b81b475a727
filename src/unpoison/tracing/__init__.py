"""Traces: spans of OpenTelemetry for each message, from its sender to its replay."""
