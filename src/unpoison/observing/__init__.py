"""What people and their monitoring see of a consumer process while it runs."""
