"""Notices for people: what is poisoned, sent to a webhook, to Slack or by e-mail."""
