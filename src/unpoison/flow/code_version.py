"""Which version of the user's code is this? Dead letters tell it, so that a person sees which release gave a message up.

It is the version of the installed distribution that the app's module belongs to. A script, or a folder that was not installed,
belongs to none.
"""

import json
from contextlib import suppress
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import unquote, urlsplit


def installed_version(file: str | None) -> str | None:
    """The version of the distribution that has installed this file; None if there is none.

    Where the file lies among installed packages, the one that lists it counts; elsewhere the innermost folder that was installed
    as editable. A project's folder often holds its virtual environment too, whose packages are not its own.
    """
    if not file:
        return None
    path, is_among_packages = Path(file).resolve(), False
    editable: dict[Path, str] = {}
    for distribution in distributions():
        with suppress(Exception):  # metadata may be broken in any way, and most of it is not the user's own
            if (folder := _editable_folder(distribution)) and path.is_relative_to(folder):
                editable[folder] = distribution.version
            is_listed = _lists(distribution, path)
            is_among_packages = is_among_packages or is_listed is not None
            if is_listed:
                return distribution.version
    if is_among_packages or not editable:
        return None
    return editable[max(editable, key=lambda folder: len(folder.parts))]


def _lists(distribution: Distribution, file: Path) -> bool | None:
    """None if the file is not in the folder into which the distribution was installed."""
    folder, record = Path(str(distribution.locate_file(""))).resolve(), distribution.read_text("RECORD")
    if record is None or not file.is_relative_to(folder):  # without a record it is a working copy that was built from
        return None
    # Searched as text: parsing the records of all packages takes ten times as long.
    return f"\n{file.relative_to(folder).as_posix()}," in f"\n{record}"


def _editable_folder(distribution: Distribution) -> Path | None:
    text = distribution.read_text("direct_url.json")
    origin = {} if text is None else json.loads(text)
    if not origin.get("dir_info", {}).get("editable"):
        return None
    return Path(unquote(urlsplit(origin["url"]).path)).resolve()
