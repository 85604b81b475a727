"""How does unpoison compare with its peers? How fast each of them is, and what each does with a message that kills its worker.

`setups.toml` says how every peer is set up, and the folder of each peer has its app and its pinned packages. What was found is
in `results.json`, `kill_test.json` and `growth.json`; docs/peers.md is written from them. To run it: python -m bench.peers --help
"""
