"""What other systems are shown: traces."""
