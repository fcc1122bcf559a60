"""Ways to damage bytes: blindly, inside what is compressed, and in text, word by word."""

from __future__ import annotations

import gzip
import io
import random
import re
import struct
import zipfile

_NUMBERS = (
    *(struct.pack("<i", n) for n in (0, -1, 1, 2**31 - 1, -(2**31), 65536, 255, 32767)),
    *(struct.pack("<f", x) for x in (float("inf"), float("-inf"), float("nan"), 1e38, -1.0)),
    *(struct.pack("<d", x) for x in (float("inf"), float("nan"), 1e308, 5e-324, -0.0)),
    *(struct.pack("<h", n) for n in (0, -1, 32767, -32768, 4, 1)),
    *(struct.pack("<Q", n) for n in (2**64 - 1, 2**63, 2**32)),
)
_WORDS = (
    *("Infinity", "-Infinity", "NaN", "nan", "inf", "null", "true", "1e999", "-1", "0", "1.5"),
    *("9" * 400, "1e308", '""', "[]", "{}", "[[1]]", '{"a": 1}', "[" * 3000, "{a=" * 300),
    *('"' + "x" * 5000 + '"', '"\\ud800"', '"\\u0000"', "'", '"', ",", ":", "\n", "=", "[a]"),
    *("../../etc/passwd", "/dev/null", "\x00", "\ufeff", "🙂", "#", "2024-01-01", "0x10", "\t"),
)


def damage_bytes(content: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """Return bytes that differ from ``content`` in one of many ways."""
    ways = [_blindly, _blindly, _cut]
    if content[:2] == b"PK":
        ways += [_in_zip, _in_zip, _in_zip]
    elif content[:2] == b"\x1f\x8b":
        ways += [_in_gzip, _in_gzip, _in_gzip]
    elif _is_text(content):
        ways += [_in_words, _in_words, _in_words]
    if rng.random() < 0.02 and others:
        return rng.choice(others)
    return rng.choice(ways)(content, rng)


def _blindly(content: bytes, rng: random.Random) -> bytes:
    """Change, insert, remove or repeat a few pieces; the beginning, where headers are, oftener."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        reach = len(changed) if rng.random() < 0.5 else min(len(changed), 400)
        place = rng.randrange(max(reach, 1))
        kind = rng.randrange(5)
        if kind == 0 and changed:
            changed[min(place, len(changed) - 1)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            piece = rng.choice(_NUMBERS)
            changed[place : place + len(piece)] = piece
        elif kind == 2:
            changed[place : place + rng.choice((1, 2, 8, 100))] = b""
        elif kind == 3:
            changed[place:place] = rng.randbytes(rng.choice((1, 2, 8, 100)))
        else:
            changed[place:place] = changed[place : place + rng.choice((4, 50, 500))]
    return bytes(changed)


def _cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _in_gzip(content: bytes, rng: random.Random) -> bytes:
    inner = _blindly(gzip.decompress(content), rng)
    if rng.random() < 0.02:
        inner += bytes(rng.choice((1 << 20, 200 << 20)))
    return gzip.compress(inner, 1, mtime=0)


def _in_zip(content: bytes, rng: random.Random) -> bytes:
    """Damage one member and pack it again with the right checksum, or change the list itself."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(list(members))
    kind = rng.randrange(8)
    if kind < 4:
        members[name] = _in_npy(members[name], rng)
    elif kind == 4:
        members[rng.choice((name + "x", name.removesuffix(".npy"), "../" + name, "."))] = (
            members.pop(name)
        )
    elif kind == 5:
        del members[name]
    elif kind == 6:
        members[name] = members[rng.choice(list(members))]
    packed = io.BytesIO()
    way = rng.choice((8, 8, 8, 0, 12, 14)) if rng.random() < 0.2 else 8
    with zipfile.ZipFile(packed, "w", way) as archive:
        for each, piece in members.items():
            archive.writestr(each, piece)
    whole = packed.getvalue()
    if kind == 7 and (found := [m.start() for m in re.finditer(b"PK\x01\x02", whole)]):
        place = rng.choice(found) + rng.choice((8, 10, 16, 20, 24, 28, 42))
        whole = whole[:place] + rng.choice(_NUMBERS)[:4].ljust(4, b"\0") + whole[place + 4 :]
    return whole


def _in_npy(content: bytes, rng: random.Random) -> bytes:
    """Change the header of an array word by word, its numbers blindly, or JSON inside it."""
    if len(content) < 10 or rng.random() < 0.3:
        return _blindly(content, rng)
    length = int.from_bytes(content[8:10], "little")
    header, body = content[10 : 10 + length], content[10 + length :]
    if rng.random() < 0.5:
        text = header.decode("latin1")
        for _ in range(rng.choice((1, 1, 3))):
            old = rng.choice(re.findall(r"\w+|'[^']*'|\S", text) or ["("])
            new = rng.choice(("-1", "0", "3", "10**9", "999999999", "True", "'<f8'", "'|O'", "((("))
            text = text.replace(old, new, 1)
        header = text.encode("latin1", "replace")
        if rng.random() < 0.5 and body:
            body = body[: rng.randrange(len(body))] if rng.random() < 0.5 else body * 2
    elif b"{\x00\x00\x00" in body[:64]:
        words = _in_words(body.decode("utf-32-le", "replace").encode(), rng).decode(
            "utf-8", "replace"
        )
        body = words.encode("utf-32-le", "replace")
        header = re.sub(rb"<U\d+", b"<U%d" % (len(body) // 4), header)
    elif body[:1] == b"{":
        body = _in_words(body, rng)
        header = re.sub(rb"\(\d+,", b"(%d," % len(body), header)
    else:
        body = _numbers(body, rng)
    return content[:8] + struct.pack("<H", len(header) & 0xFFFF) + header + body


def _numbers(body: bytes, rng: random.Random) -> bytes:
    changed = bytearray(body)
    for _ in range(rng.choice((1, 2, 8))):
        piece = rng.choice(_NUMBERS)
        place = rng.randrange(max(len(changed), 1)) // len(piece) * len(piece)
        if place + len(piece) <= len(changed):
            changed[place : place + len(piece)] = piece
    return bytes(changed)


def _in_words(content: bytes, rng: random.Random) -> bytes:
    """Put nasty words in place of numbers, texts and signs."""
    text = content.decode("utf-8", "replace")
    for _ in range(rng.choice((1, 1, 2, 5))):
        places = [m.span() for m in re.finditer(r'"[^"\n]*"|-?\d[\d.e+-]*|[\[\]{},:=]|\w+', text)]
        if not places:
            break
        start, stop = rng.choice(places)
        text = text[:start] + rng.choice(_WORDS) + text[stop:]
    if rng.random() < 0.05:
        text = "[" * rng.choice((1000, 100_000)) + text
    return text.encode("utf-8", "surrogatepass")


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
