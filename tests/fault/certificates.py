"""Who is a server that nobody has vouched for?"""

import subprocess
from pathlib import Path


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and localhost that vouches for itself, and its key."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext"]
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    subprocess.run([*command, names, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    certificate.chmod(0o644)
    return certificate, key
