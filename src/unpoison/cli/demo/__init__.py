"""The demonstration: a shop's orders with every kind of poison among them, and where each of them went."""
