"""How is something measured on a machine that others use as well? Side by side, in rounds, as ratios."""
