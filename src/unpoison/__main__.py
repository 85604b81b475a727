"""`python -m unpoison` is `unpoison`."""

from unpoison.cli.main import main

main()
