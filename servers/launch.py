"""How does a server outlive the process that started it, and who collects it when it ends?

Run as a program: leaves a keeper in the background, prints the id of the server and ends. The keeper is the server's parent and
waits for it and for all that comes from it. Without one a killed PostgreSQL would stay as a zombie wherever process 1 collects
nobody (many containers), and PostgreSQL does not start again while the id of the last one is taken.

The server leaves the terminal (Ctrl-C is for the owner, who then stops it in order), writes to its own log, and gives up root. It
does so here and not by the caller, since an unprivileged user may not be allowed to read the project's folder.
"""

import ctypes
import json
import os
import sys

PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    wanted = json.loads(sys.argv[1])
    if os.fork():
        return
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    server = os.fork()
    if server == 0:
        _become(wanted)
    os.write(1, f"{server}\n".encode())
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.chdir("/")
    try:
        while True:
            os.wait()
    except ChildProcessError:
        os._exit(0)


def _become(wanted: dict) -> None:  # type: ignore[type-arg]
    os.setsid()
    log = os.open(wanted["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        os.chdir(wanted["folder"])
        if wanted["uid"] is not None:
            os.setgroups([])
            os.setgid(wanted["gid"])
            os.setuid(wanted["uid"])
        os.execvpe(wanted["command"][0], wanted["command"], wanted["environment"])
    except OSError as error:
        os.write(2, f"cannot start {wanted['command']}: {error}\n".encode())
    os._exit(127)


if __name__ == "__main__":
    main()
