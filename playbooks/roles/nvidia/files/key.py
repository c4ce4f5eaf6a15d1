"""Prints the key at a URL; fails unless the fingerprint of its one primary key is the one that is expected.

It prints the bytes that it checked, armored again: apt also reads lines that are outside the block or behind padding.
"""

import base64
import hashlib
import re
import sys
import textwrap
import urllib.request


def bare(armored):
    """The bytes of the one block; none of anything else."""
    body = re.search(
        r"-----BEGIN PGP PUBLIC KEY BLOCK-----\n(?:\S+:.*\n)*\n?((?:[A-Za-z0-9+/=]+\n)+?)(?:=\S{4}\n)?-----END", armored
    )
    if not body or armored.count("-----BEGIN") != 1:
        return b""
    try:
        return base64.b64decode("".join(body[1].split()), validate=True)
    except ValueError:
        return b""


def fingerprints(data):
    """Of all primary keys, as OpenPGP defines them for version 4."""
    found, at = [], 0
    while at < len(data):
        head, at = data[at], at + 1
        if head & 0x40:
            tag, first = head & 0x3F, data[at]
            width = 1 if first < 192 else 2 if first < 224 else 5
            size = int.from_bytes(data[at + width - 4 : at + width], "big") if width == 5 else first
            size = (first - 192) * 256 + data[at + 1] + 192 if width == 2 else size
        else:
            tag, width = head >> 2 & 15, 1 << (head & 3)
            size = int.from_bytes(data[at : at + width], "big")
        packet = data[at + width : at + width + size]
        at += width + size
        if tag == 6:
            known = packet[:1] == b"\x04"
            found.append(
                hashlib.sha1(b"\x99" + len(packet).to_bytes(2, "big") + packet).hexdigest() if known else "unknown"
            )
    return found


url, expected = sys.argv[1], sys.argv[2].replace(" ", "").lower()
with urllib.request.urlopen(url, timeout=60) as answer:
    key = bare(answer.read(2**20).decode("ascii", "replace").replace("\r\n", "\n"))
if (found := fingerprints(key)) != [expected]:
    sys.exit(f"{url} holds the key {', '.join(found) or 'none'}, and {expected} is expected")
text = "\n".join(textwrap.wrap(base64.b64encode(key).decode(), 64))
print(f"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n{text}\n-----END PGP PUBLIC KEY BLOCK-----")
