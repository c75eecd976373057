"""Builds a catalogue on disk from the original's files, in bounded memory, going on where an earlier try stopped.

Segments of a thousand products (:mod:`envs.webshop.disk.segments`) become rows of a database, a transaction each; then
they are merged (:mod:`envs.webshop.disk.merge`). All of it happens in ``OUT.unfinished``; the finished folder in it is
renamed to ``OUT`` at the very end.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from envs.arguments import check_int
from envs.webshop.disk.format import VERSION, WORK, CatalogueError, encode, unfinished_name
from envs.webshop.disk.json_stream import JsonFile
from envs.webshop.disk.merge import merge_segments
from envs.webshop.disk.segments import SIDES, Found, make_segments
from envs.webshop.original import find_file, usable_asin

__all__ = ["Progress", "build_index"]

SEGMENT_PRODUCTS = 1_000

_TABLES = (
    "job (job TEXT)",
    "sides (key BLOB, role TEXT, value TEXT)",
    "products (doc INTEGER PRIMARY KEY, asin BLOB, length INTEGER, pricing BLOB, packed BLOB)",
    "goals (kind TEXT, doc INTEGER, combinations INTEGER, said BLOB)",
    "nouns (title BLOB, nouns BLOB)",
    "postings (segment INTEGER, term BLOB, pairs BLOB, PRIMARY KEY (segment, term)) WITHOUT ROWID",
)
"""What is built, the entries of the other input files, and the rows of
:class:`~envs.webshop.disk.segments.Segment`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a build is."""

    stage: str
    """``side files``, ``segments``, ``products``, ``goals``, ``postings``, ``done``."""
    fraction: float
    """Of the stage."""
    products: int
    """Records read so far."""
    products_per_s: float
    """In this stage of this run; 0 before the first segment is finished."""
    eta_s: float | None
    """Seconds until the end of the stage, where it can be told."""


def build_index(
    source: str | Path,
    out: str | Path,
    *,
    attributes: str | Path | None = None,
    human_instructions: str | Path | None = None,
    num_products: int | None = None,
    seed: int = 0,
    workers: int = 2,
    segment_products: int = SEGMENT_PRODUCTS,
    progress: Callable[[Progress], None] | None = None,
) -> Path:
    """Build the catalogue ``out`` from ``source``: a data folder of the original, or its product file.

    The other files are those in the folder of the products unless they are given; the first ``num_products`` records
    count. ``workers=0`` does all the work in this process; with others, a script must call this under
    ``if __name__ == "__main__"``, as for any pool of processes. A build that was interrupted is gone on with by the same
    call; the bytes that come out depend on the files, ``num_products`` and ``seed`` only. Raises
    :class:`CatalogueError` for files that are missing, damaged or changed since, and when ``out`` exists.
    """
    check_int("num_products", 1 if num_products is None else num_products, 1)
    check_int("workers", workers, 0)
    check_int("segment_products", segment_products, 1)
    target = Path(out).absolute()
    if target.exists():
        raise CatalogueError(f"{str(target)!r} exists already; choose another name, or remove it to build it anew")
    given = {"attributes": attributes, "human_instructions": human_instructions}
    files = _find_files(Path(source), given, num_products)
    stats = {role: path.stat() for role, path in files.items()}
    # A file that was changed is noticed by size and time, without reading it.
    found = [[role, str(files[role].absolute()), stat.st_size, stat.st_mtime_ns] for role, stat in stats.items()]
    job = {"version": VERSION, "seed": seed, "num_products": num_products, "files": found}
    report = _Reporter(progress or (lambda _: None))
    draft = unfinished_name(target)
    made = draft / "made"
    try:
        with _open_work(draft) as work:
            _begin(work, draft, job, files, report)
            _add_segments(work, files["products"], num_products, segment_products, workers, report)
            # Left by an earlier try that was ended while it merged.
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir()
            sources = {role: f"{path.name} ({stats[role].st_size} bytes)" for role, path in files.items()}
            merge_segments(work, made, seed, sources, report)
            report("done", 1.0)
            # Whoever sees `target` sees all of it.
            made.rename(target)
        shutil.rmtree(draft, ignore_errors=True)
    except (OSError, sqlite3.Error) as error:
        raise CatalogueError(
            f"building {str(target)!r} failed ({error}); make room or mend access, then the same command goes on; or "
            f"remove {str(draft)!r} to start anew"
        ) from error
    return target


def _find_files(source: Path, given: Mapping[str, str | Path | None], num_products: int | None) -> dict[str, Path]:
    """The input files by role; those that are not there are left out, unless they were asked for."""
    folder, products = source.parent, source
    if source.is_dir():
        found = find_file(source, "items_shuffle", num_products)
        if found is None:
            raise CatalogueError(f"there is no items_shuffle*.json in {str(source)!r}; give a folder that holds one")
        folder, products = source, found
    files = {"products": products}
    for role, stem in SIDES.items():
        path = given.get(role) or find_file(folder, stem, num_products if role == "attributes" else None)
        if path is not None:
            files[role] = Path(path)
    for role, path in files.items():
        if not path.is_file():
            raise CatalogueError(f"there is no file {str(path)!r} (for {role}); give the path of a JSON file")
    return files


@contextmanager
def _open_work(draft: Path) -> Iterator[sqlite3.Connection]:
    """The database of an unfinished build, held for this process, in a transaction that has not done anything yet."""
    draft.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(draft / WORK, timeout=0)) as work:
        # Such a lock ends with the process, however that ends.
        work.execute("PRAGMA locking_mode = EXCLUSIVE")
        try:
            work.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            raise CatalogueError(f"another process is building in {str(draft)!r}; wait for it, or end it") from None
        yield work


class _Reporter:
    """Reports the progress of a build: records per second and the time left."""

    def __init__(self, listener: Callable[[Progress], None]) -> None:
        self.listener, self.stage, self.products = listener, "", 0

    def __call__(self, stage: str, fraction: float, products: int | None = None) -> None:
        now_s = time.monotonic()
        self.products = self.products if products is None else products
        if stage != self.stage:
            self.stage, self.began = stage, (now_s, fraction, self.products)
        began_s, first_fraction, first_products = self.began
        passed_s, gained = max(now_s - began_s, 1e-9), fraction - first_fraction
        self.listener(
            Progress(
                stage=stage,
                fraction=fraction,
                products=self.products,
                products_per_s=(self.products - first_products) / passed_s,
                eta_s=(1.0 - fraction) / gained * passed_s if gained > 0 else None,
            )
        )


def _begin(
    work: sqlite3.Connection, draft: Path, job: Mapping[str, Any], files: Mapping[str, Path], report: _Reporter
) -> None:
    """Note the job and the entries of the other files, all or none; a build that goes on must be of the same job."""
    if work.execute("SELECT * FROM sqlite_master").fetchone() is None:
        for table in _TABLES:
            work.execute(f"CREATE TABLE {table}")
        work.execute("INSERT INTO job VALUES (?)", (json.dumps(job),))
        for number, role in enumerate(role for role in SIDES if role in files):
            report("side files", number / len(SIDES))
            work.executemany("INSERT INTO sides VALUES (?, ?, ?)", _entries(role, files[role]))
        # Afterwards, since sorting once is quicker than keeping an order.
        work.execute("CREATE INDEX by_key ON sides (key)")
    work.commit()
    begun = json.loads(*work.execute("SELECT job FROM job").fetchone())
    changed = [
        f"{key}: {begun.get(key)!r} then, {value!r} now" for key, value in job.items() if begun.get(key) != value
    ]
    if changed:
        raise CatalogueError(
            f"{str(draft)!r} was begun with other input ({'; '.join(changed)}); go on with that input, "
            "or remove that folder to start anew"
        )


def _entries(role: str, path: Path) -> Iterator[tuple[bytes, str, str]]:
    for key, value, text in JsonFile(path, "[]" if role == "reviews" else "{}"):
        yield encode(str(value.get("asin")) if role == "reviews" else key), role, text


def _add_segments(
    work: sqlite3.Connection,
    products: Path,
    num_products: int | None,
    segment_products: int,
    workers: int,
    report: _Reporter,
) -> None:
    """Keep the rows of all products that are not there yet, all of one segment or none."""
    file, num_bytes = JsonFile(products, "[]"), products.stat().st_size
    [num_held] = work.execute("SELECT coalesce(max(doc) + 1, 0) FROM products").fetchone()
    usable = _usable(islice(file, num_products))
    deque(islice(usable, num_held), maxlen=0)
    report("segments", file.num_chars / num_bytes, file.number)
    found = _join(work, products, enumerate(usable, num_held))
    for segment in make_segments(iter(lambda: list(islice(found, segment_products)), []), workers):
        with work:
            work.executemany("INSERT INTO products VALUES (?, ?, ?, ?, ?)", segment.products)
            work.executemany("INSERT INTO goals VALUES (?, ?, ?, ?)", segment.goals)
            work.executemany("INSERT INTO nouns VALUES (?, ?)", segment.nouns)
            work.executemany("INSERT INTO postings VALUES (?, ?, ?)", segment.postings)
        report("segments", file.num_chars / num_bytes, file.number)


def _usable(elements: Iterable[tuple[int, dict[str, Any], str]]) -> Iterator[tuple[int, str, str]]:
    """Number, product number and text of each record but those that are no product: an unusable number, or one that
    was there before."""
    seen = set()
    for number, record, text in elements:
        asin = record.get("asin")
        # What is no text at all is an error that the segment tells.
        if not isinstance(asin, str) or (usable_asin(asin) and encode(asin) not in seen):
            seen.add(encode(str(asin)))
            yield number, str(asin), text


def _join(
    work: sqlite3.Connection, products: Path, usable: Iterable[tuple[int, tuple[int, str, str]]]
) -> Iterator[Found]:
    """Documents with what the other files hold of them."""
    for doc, (number, asin, text) in usable:
        sides = work.execute("SELECT role, value FROM sides WHERE key = ? ORDER BY rowid", (encode(asin),))
        yield Found(doc, f"{products}, record {number}", text, sides.fetchall())
