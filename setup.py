"""The one thing pyproject.toml cannot say: an extension that may fail to build, and then is not there."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "covey.native._rows",
            ["covey/native/rows.c"],
            depends=["covey/native/rows.h"],
            extra_compile_args=["-O3", "-std=gnu11", "-ffp-contract=fast", "-Wno-psabi"],
            optional=True,  # without a compiler, torch does the work
        )
    ]
)
