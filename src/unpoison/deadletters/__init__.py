"""Messages given up on: the record, and what a person does with it."""
