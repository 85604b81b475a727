"""The part of the store that keeps dead letters: stored, counted, found by filters and words, and changed."""
