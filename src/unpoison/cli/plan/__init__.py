"""Planning retries: what settings will do, as figures and as pictures."""
