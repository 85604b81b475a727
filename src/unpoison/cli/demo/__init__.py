"""`unpoison demo`: a shop's orders, one of each kind of poison among them, and an account of where each order went."""
