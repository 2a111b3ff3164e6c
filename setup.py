"""The one thing pyproject.toml cannot say: an extension that may fail to build, and then is not
there.
"""

import hashlib
from pathlib import Path

from setuptools import Extension, setup

SOURCES = ["covey/native/rows.c", "covey/native/rows.h"]
MARK = hashlib.sha256(
    b"".join(Path(__file__).parent.joinpath(source).read_bytes() for source in SOURCES)
)

setup(
    ext_modules=[
        Extension(
            "covey.native._rows",
            SOURCES[:1],
            depends=SOURCES[1:],
            define_macros=[
                ("SOURCE", f'"{MARK.hexdigest()[:16]}"')
            ],  # so that a stale build is noticed
            extra_compile_args=["-O3", "-std=gnu11", "-ffp-contract=fast", "-Wno-psabi"],
            optional=True,  # without a compiler, torch does the work
        )
    ]
)
