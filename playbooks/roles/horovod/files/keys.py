"""Writes the files that come as JSON on stdin ({name: text}) into a folder that the containers' user can read.

The folder is root's: whoever can write into it could send root's writing elsewhere by a link.
"""

import json
import os
import shutil
import sys
from pathlib import Path

# HVD_USER of prelude.sh.
USER = 74830

folder = Path(sys.argv[1])
texts = json.load(sys.stdin)
folder.mkdir(mode=0o700, exist_ok=True)
os.chown(folder, 0, USER)
folder.chmod(0o750)
for other in folder.iterdir():
    if other.is_dir() and not other.is_symlink():
        shutil.rmtree(other)
    elif other.name not in texts:
        other.unlink()
for name, text in texts.items():
    part = folder / f".{name}.part"
    # Renamed, as a container may read it at this moment.
    with os.fdopen(
        os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w", encoding="utf-8"
    ) as file:
        os.fchown(file.fileno(), USER, USER)
        file.write(text)
    part.rename(folder / name)
