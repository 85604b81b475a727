"""What monitoring needs to know: alerts for Prometheus, a dashboard for Grafana, alarms for CloudWatch."""
