"""What do retries cost, before they are set loose? Arithmetic on settings alone: nothing is read, sent or run."""
