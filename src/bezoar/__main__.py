"""`python -m bezoar` is `bezoar`."""

from bezoar.cli.main import main

main()
