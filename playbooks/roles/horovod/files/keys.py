"""Writes the files that come as JSON on stdin ({name: text}) into a folder that only the containers' user can read."""

import json
import os
import sys
from pathlib import Path

USER = 1000

folder = Path(sys.argv[1])
texts = json.load(sys.stdin)
folder.mkdir(mode=0o700, exist_ok=True)
folder.chmod(0o700)
os.chown(folder, USER, USER)
for name, text in texts.items():
    with os.fdopen(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)
        os.fchown(file.fileno(), USER, USER)
        file.write(text)
for other in folder.iterdir():
    if other.name not in texts:
        other.unlink()
