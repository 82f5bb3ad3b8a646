"""An old SQLite: the native library in the jar of its driver for Java, which has the same symbols."""

import platform
import sys
import zipfile
from pathlib import Path

from maven import Unavailable, jars

DRIVER = "org.xerial:sqlite-jdbc:3.34.0"


def old_sqlite() -> Path:
    """The shared library. Raises `Unavailable` if it cannot be downloaded, or there is none for this
    machine."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        raise Unavailable("needs Linux on x86-64 or ARM")
    [jar] = jars(DRIVER, alone=True)
    library = jar.with_name("libsqlite3.so")
    if not library.exists():
        name = f"org/sqlite/native/Linux/{platform.machine()}/libsqlitejdbc.so"
        with zipfile.ZipFile(jar) as archive:
            part = library.with_suffix(".part")
            part.write_bytes(archive.read(name))
            part.replace(library)
    return library
