"""What a broker adapter must do, and the parts that adapters share."""
