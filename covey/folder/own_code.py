"""The modules of a user's own that an experiment names: they travel with it to every node.

A folder that names some has a mark: a hash of its config.toml and of all code in it, with a secret
of this user on this machine. What another user or machine made, or has changed, has no such mark,
and its code is not run unless the user says so.
"""

from __future__ import annotations

import hmac
import os
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from importlib.machinery import all_suffixes
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from covey import atomic
from covey.atomic import refused
from covey.data.published.locations import user_data
from covey.data.shards import some
from covey.errors import ConfigError
from covey.fields import plain
from covey.files.config import Config, unchecked
from covey.files.modules import is_own_name
from covey.runs.saved import source
from covey.runs.saved.run_folder import RunFolder

_SECRET = 32  # bytes


def own_modules(config: Config) -> dict[str, str]:
    """The texts of the modules that an experiment names and of those that they import, by path.

    Installed packages are not among them.
    """
    out = {}
    for path, file in sorted(source.own_files(_named(config)).items()):
        try:
            out[path] = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} cannot be sent to the nodes: {error}.") from error
    return out


def write_modules(folder: Path, texts: Mapping[str, str]) -> None:
    """Write modules below a folder; each file is replaced in one step."""
    for path, text in texts.items():
        file = folder / path
        with refused(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            atomic.write(file, text)


def write_config(
    folder: RunFolder, config: Config, modules: Mapping[str, str] | None = None
) -> None:
    """Write the resolved file of a folder, its modules and, where it names any, the mark."""
    if modules:
        write_modules(folder.path, modules)
    folder.write(folder.config, config.text())
    if _named(config) and folder.writes and (secret := _secret()) is not None:
        folder.write(folder.mark, _mark(folder, secret))


def refusal(folder: Path) -> str | None:
    """Why the code that a run folder names is not run; None: it is this user's, or there is none.

    Copies that Python compiled are not part of a mark, so they are removed.
    """
    run = RunFolder(folder)
    names = _named(unchecked(run.config))
    if not names:
        return None
    with suppress(OSError, ValueError):
        made = run.mark.read_text(encoding="ascii")
        secret = _secret()
        if secret is not None and hmac.compare_digest(made, _mark(run, secret)):
            for cache in folder.rglob("__pycache__"):
                shutil.rmtree(cache)
            return None
    what = f"{folder} names code of its own ({some(sorted(set(names)))})"
    why = "and was not made, or was changed, by this user on this machine"
    fix = "give --trust, in Python trust=True"
    return f"{what}, {why}; to run that code here, if you trust it, {fix}."


def _mark(folder: RunFolder, secret: bytes) -> str:
    """The hash of a folder's file and of all that Python could import from it, with a secret."""
    mark = hmac.new(secret, digestmod="sha256")
    files = [folder.config]
    for path in sorted(folder.path.rglob("*")):
        code = path.is_file() and path.name.endswith(tuple(all_suffixes()))
        if path.is_symlink() or (code and path.parent.name != "__pycache__"):
            files.append(path)
    for path in files:
        content = os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()
        mark.update(f"{path.relative_to(folder.path)} {len(content)}\n".encode() + content)
    return mark.hexdigest()


def _secret() -> bytes | None:
    """What this user alone knows, on this machine; None where there is no place to keep it."""
    try:
        path = user_data() / "covey" / "secret"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile(dir=path.parent) as part:  # which others cannot read
                part.write(secrets.token_bytes(_SECRET))
                part.flush()
                with suppress(FileExistsError):
                    os.link(part.name, path)
        secret = path.read_bytes()
    except (OSError, RuntimeError):  # the latter where a user has no home
        return None
    return secret if len(secret) == _SECRET else None


def _named(config: Config) -> list[str]:
    """The modules of all that is named as package.module:name, at any depth of the file."""
    out = []
    left: list[Any] = [plain(config)]
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            left += value.values()
        elif isinstance(value, list | tuple):
            left += value
        elif isinstance(value, str) and is_own_name(value):
            out.append(value.partition(":")[0])
    return out
