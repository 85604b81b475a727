"""The demonstration: a small shop, its trouble, and where every order went."""
