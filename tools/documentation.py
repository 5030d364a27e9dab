"""English text of Debian's documentation packages, compressed: `tools/documentation.py <folder>`.

It needs zstd and apt-get, which downloads the packages of `PACKAGES`; they are unpacked aside, and
nothing is installed. From HTML and plain text it takes the paragraphs, leaves out scripts, code and
tables, and keeps one of equal paragraphs (compared by their letters). The folder gets
`documentation.jsonl.zst` and `documentation.csv`: version, licence, bytes and SHA-256 of each
package's text. With the packages of 2026-11-28 the text is `MEASURED`; other versions give another
one. More would not travel: with the checkout and `make gpu-pack` it comes near 64 MiB.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html import unescape
from pathlib import Path

#: Packages of Debian 12 (main) and the licences that their copyright files name for the text.
PACKAGES = {
    "apache2-doc": "Apache-2.0",
    "cppreference-doc-en-html": "CC-BY-SA-3.0",
    "dict-gcide": "GPL",
    "erlang-doc": "Apache-2.0",
    "ghc-doc": "BSD-3-Clause",
    "git-doc": "GPL-2+",
    "libgtk-4-doc": "LGPL-2.1+",
    "libreoffice-help-en-us": "MPL-2.0",
    "linux-doc-6.12": "GPL-2",
    "manpages": "GPL-2+, BSD and the licence of man-pages",
    "manpages-dev": "GPL-2+, BSD and the licence of man-pages",
    "nodejs-doc": "MIT",
    "openjdk-17-doc": "GPL-2 with the Classpath exception",
    "perl-doc": "GPL-1+ or Artistic",
    "postgresql-doc-15": "PostgreSQL",
    "python-django-doc": "BSD-3-Clause",
    "python-pandas-doc": "BSD-3-Clause",
    "python-scipy-doc": "BSD-3-Clause",
    "python3.11-doc": "PSF-2",
    "racket-doc": "MIT, LGPL-2.1+",
}
#: Bytes and SHA-256 of the text.
MEASURED = 156250757, "d8d57e2f4cecbec777f59494f2e4f882d91b4c1b449b7016abd96295ef5db62a"
FEWEST_WORDS = 6
HTML, PLAIN = (".html", ".htm", ".xhtml"), (".txt", ".rst", ".pod", ".md", ".1", ".2", ".3", ".7")
_LEFT_OUT = re.compile(
    r"<!--.*?-->|<(script|style|head|pre|nav|table|svg|button|select)\b.*?</\1\s*>", re.S | re.I
)
_BLOCK = re.compile(
    r"</?(?:p|div|li|ul|ol|dl|dt|dd|h\d|section|article|br|hr|blockquote|body|header|footer)\b[^>]*>",
    re.I,
)
_TAG = re.compile(r"<[^>]*>")


def main(folder: str) -> None:
    """Write the text and the table of its packages."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    seen: set[bytes] = set()
    rows = []
    whole = hashlib.sha256()
    file = target / "documentation.jsonl"
    with file.open("wb") as out:
        for package, licence in PACKAGES.items():
            with tempfile.TemporaryDirectory() as place:
                version = unpacked(package, Path(place))
                digest, size = hashlib.sha256(), 0
                for text in documents(Path(place) / "files", seen):
                    line = (json.dumps({"text": text}, ensure_ascii=False) + "\n").encode()
                    out.write(line)
                    digest.update(line)
                    whole.update(line)
                    size += len(line)
            rows.append((package, version, licence, size, digest.hexdigest()))
            print(f"{package} {version}: {size / 1e6:.1f} MB", flush=True)
    with (target / "documentation.csv").open("w", encoding="utf-8", newline="") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        writer.writerows([("package", "version", "licence", "bytes", "sha256"), *rows])
    found = file.stat().st_size, whole.hexdigest()
    subprocess.run(["zstd", "-q", "-19", "-f", "--rm", str(file)], check=True)
    print(f"{found[0]:,} bytes, SHA-256 {found[1]}" + ", as measured" * (found == MEASURED))


def unpacked(package: str, place: Path) -> str:
    """Download a package, unpack it into `files` of a folder, and tell its version."""
    for words in (["apt-get", "-q", "download", package], ["sh", "-c", "dpkg-deb -x *.deb files"]):
        subprocess.run(words, cwd=place, check=True, capture_output=True)
    (deb,) = place.glob("*.deb")
    return subprocess.check_output(["dpkg-deb", "-f", str(deb), "Version"], text=True).strip()


def documents(folder: Path, seen: set[bytes]) -> Iterator[str]:
    """Text of each file, in the order of their names; paragraphs that were seen are left out."""
    for file in sorted(file for file in folder.rglob("*") if file.is_file()):
        if file.is_symlink() or file.name.startswith("copyright"):
            continue
        packed = file.suffix in (".gz", ".dz")
        suffix = Path(file.stem).suffix if packed else file.suffix
        if suffix not in (*HTML, *PLAIN) and file.suffix != ".dz":
            continue
        raw = gzip.decompress(file.read_bytes()) if packed else file.read_bytes()
        text = raw.decode("utf-8", errors="replace")
        kept = []
        for paragraph in paragraphs(text, html=suffix in HTML):
            letters = "".join(filter(str.isalpha, paragraph.lower()))
            key = hashlib.blake2b(letters.encode(), digest_size=12).digest()
            if key not in seen:
                seen.add(key)
                kept.append(paragraph)
        if kept:
            yield "\n".join(kept)


def paragraphs(text: str, *, html: bool) -> Iterator[str]:
    """Paragraphs of at least `FEWEST_WORDS` words, each on one line."""
    if html:
        text = unescape(_TAG.sub("", _BLOCK.sub("\n\n", _LEFT_OUT.sub(" ", text))))
    for block in re.split(r"\n\s*\n", text):
        words = block.split()
        if len(words) >= FEWEST_WORDS and sum(word.isalpha() for word in words) > len(words) / 2:
            yield " ".join(words)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("error: python tools/documentation.py <folder>")
    main(sys.argv[1])
