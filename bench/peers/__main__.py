"""`python -m bench.peers --help`."""

import sys

from bench.peers.main import main

sys.exit(main())
