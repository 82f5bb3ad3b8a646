"""Builds the kernel, `purgatory/_core/_kernel.c`, into a wheel: for hatchling, see pyproject.toml.

It is optional. Without a compiler or Python's headers the wheel is pure, has the tag of a pure one,
and a warning reports it (`pip install -v` shows it). On PyPy it is left out. `PURGATORY_PURE` decides
otherwise:

    1    leave it out: a wheel for every platform, py3-none-any
    0    fail if it cannot be built
"""

import os
import shutil
import sys
import sysconfig
import tempfile
from binascii import crc32
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext

SOURCE = "purgatory/_core/_kernel.c"


class KernelBuildHook(BuildHookInterface):  # type: ignore[type-arg]  # hatchling's
    """Adds the compiled kernel to a wheel; for an editable install, to the tree."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before a wheel is built; `version` is "standard" or "editable"."""
        pure = os.environ.get("PURGATORY_PURE", "")
        source = Path(self.root, SOURCE)
        if version == "editable":  # one that was built from other sources must not stay
            suffix = sysconfig.get_config_var("EXT_SUFFIX")
            source.with_name(f"_kernel{suffix}").unlink(missing_ok=True)
        is_supported = sys.implementation.name == "cpython"
        if pure not in ("", "0") or (not pure and not is_supported):
            return
        self.folder = tempfile.TemporaryDirectory()  # until the wheel is there
        try:
            built = compile_kernel(source, self.folder.name)
        except BaseException as error:
            if pure or not isinstance(error, (Exception, SystemExit)):
                raise
            reason = str(error).strip().splitlines() or [type(error).__name__]
            self.app.display_warning(f"purgatory is built without its kernel in C: {reason[0]}")
            return
        if version == "editable":
            shutil.copy(built, source.parent)
        else:
            build_data["force_include"][str(built)] = f"{Path(SOURCE).parent}/{built.name}"
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def compile_kernel(source: Path, folder: str) -> Path:
    """Compiles the kernel with setuptools, which knows the compilers, and respects CC and CFLAGS.

    Returns:
        Where the module is.
    """
    kernel = Extension(
        "_kernel",
        [str(source)],
        define_macros=[("SOURCE", f"{crc32(source.read_bytes())}u")],  # compared at import
        extra_compile_args=["-O3"],  # CFLAGS may have none
    )
    command = build_ext(Distribution({"name": "purgatory", "ext_modules": [kernel]}))
    command.build_lib, command.build_temp = folder, f"{folder}/objects"
    command.ensure_finalized()
    command.run()
    return Path(command.get_ext_fullpath("_kernel"))
