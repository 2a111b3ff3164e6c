"""What pyproject.toml cannot say: how the compiled kernel is built and named.

The kernel is plain C that ctypes loads. It uses nothing of Python, so one library serves every
interpreter, and one wheel per platform: py3-none-PLATFORM. If it cannot be built (no compiler), the
wheel has no library, its tag is py3-none-any, and torch does the work.
"""

import hashlib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

KERNEL = "covey.native._rows"
SUFFIX = EXTENSION_SUFFIXES[-1]  # without the interpreter's version: .so, on Windows .pyd
SOURCES = ["covey/native/rows.c", "covey/native/rows.h", "covey/native/normal.h"]
MARK = hashlib.sha256(
    b"".join(Path(__file__).parent.joinpath(source).read_bytes() for source in SOURCES)
)


class BuildKernel(build_ext):
    """Names the library after no interpreter."""

    def get_ext_filename(self, fullname: str) -> str:
        """The path of a library, from the name of its module."""
        return str(Path(*fullname.split("."))) + SUFFIX


class AnyInterpreter(bdist_wheel):
    """Tags the wheel by what it holds: a library for one platform, or none."""

    def get_tag(self) -> tuple[str, str, str]:
        """(interpreter, ABI, platform)."""
        _, _, platform = super().get_tag()
        library = Path(self.bdist_dir, *KERNEL.split(".")).with_suffix(SUFFIX)
        if not library.exists():
            platform = "any"
        return "py3", "none", platform


setup(
    cmdclass={"build_ext": BuildKernel, "bdist_wheel": AnyInterpreter},
    ext_modules=[
        Extension(
            KERNEL,
            SOURCES[:1],
            depends=SOURCES[1:],
            define_macros=[
                ("SOURCE", f'"{MARK.hexdigest()[:16]}"')
            ],  # so that a stale build is noticed
            extra_compile_args=["-O3", "-g0", "-std=gnu11", "-ffp-contract=fast", "-Wno-psabi"],
            optional=True,  # without a compiler, torch does the work
        )
    ],
)
