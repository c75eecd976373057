"""Builds a catalogue on disk from the original's files, in bounded memory, going on where an earlier try stopped.

A thousand products at a time become rows of a database, in a transaction, then all rows become files (both in
:mod:`envs.webshop.disk.segments`). All of it happens in ``OUT.unfinished``; the finished folder in it is renamed to
``OUT`` at the very end.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from envs.arguments import check_int
from envs.webshop.disk.format import VERSION, WORK, CatalogueError, encode, unfinished_name, write_manifest
from envs.webshop.disk.json_stream import JsonFile
from envs.webshop.disk.segments import SIDES, Found, Segment, make_segment, make_segments, merge_segments
from envs.webshop.original import find_file, usable_asin

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
    progress: Callable[[Progress], None] | None = None,
) -> Path:
    """Build the catalogue ``out`` from ``source``: a data folder of the original, or its product file.

    The other files are those in the folder of the products unless they are given; the first ``num_products`` records
    count. ``workers=0`` does all the work in this process; with others, a script calls this under
    ``if __name__ == "__main__"``, as it does for any pool of processes.

    A build that was interrupted is gone on with by the same call; the bytes that come out depend on the files,
    ``num_products`` and ``seed`` only. Raises :class:`CatalogueError` for files that are missing, damaged or changed
    since, and when ``out`` exists.
    """
    check_int("num_products", 1 if num_products is None else num_products, 1)
    check_int("workers", workers, 0)
    target = Path(out).absolute()
    if target.exists():
        raise CatalogueError(f"{str(target)!r} exists already; choose another name, or remove it to build it anew")
    files = _find_files(Path(source), num_products, attributes=attributes, human_instructions=human_instructions)
    # A file that was changed is noticed by size and time, without reading it.
    stats = {role: path.stat() for role, path in files.items()}
    found = [[role, str(files[role].absolute()), stat.st_size, stat.st_mtime_ns] for role, stat in stats.items()]
    job = {"version": VERSION, "seed": seed, "num_products": num_products, "files": found}
    report, draft = _Reporter(progress or (lambda _: None)), unfinished_name(target)
    made = draft / "made"
    try:
        with _begun(draft, job, files, report) as work:
            file = JsonFile(files["products"], "[]")
            products = _found(work, file, num_products, report)
            tasks = iter(lambda: list(islice(products, SEGMENT_PRODUCTS)), [])
            for segment in make_segments(tasks, workers) if workers else map(make_segment, tasks):
                _add_segment(work, segment)
                report("segments", file.fraction, file.number)
            # Left by an earlier try that was ended while it merged.
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir()
            counts = merge_segments(work, made, seed, report)
            sources = {role: f"{files[role].name} ({stat.st_size} bytes)" for role, stat in stats.items()}
            write_manifest(made, counts, seed, sources)
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


def _find_files(source: Path, num_products: int | None, **given: str | Path | None) -> dict[str, Path]:
    """The input files by role; those that are not there are left out, unless they were asked for."""
    folder = source if source.is_dir() else source.parent
    products = find_file(source, "items_shuffle", num_products) if source.is_dir() else source
    if products is None:
        raise CatalogueError(f"there is no items_shuffle*.json in {str(source)!r}; give a folder that holds one")
    found = {
        role: given.get(role) or find_file(folder, stem, num_products if role == "attributes" else None)
        for role, stem in SIDES.items()
    }
    files = {"products": products, **{role: Path(path) for role, path in found.items() if path}}
    for role, path in files.items():
        if not path.is_file():
            raise CatalogueError(f"there is no file {str(path)!r} (for {role}); give the path of a JSON file")
    return files


class _Reporter:
    """Reports the progress of a build: records per second and the time left."""

    def __init__(self, listener: Callable[[Progress], None]) -> None:
        self.listener, self.stage = listener, ""

    def __call__(self, stage: str, fraction: float, products: int = 0) -> None:
        if stage != self.stage:
            self.stage, self.began_s, self.first_fraction, self.first = stage, time.monotonic(), fraction, products
        passed_s, gained = max(time.monotonic() - self.began_s, 1e-9), fraction - self.first_fraction
        per_s = (products - self.first) / passed_s
        eta_s = (1.0 - fraction) / gained * passed_s if gained > 0 else None
        self.listener(Progress(stage=stage, fraction=fraction, products=products, products_per_s=per_s, eta_s=eta_s))


@contextmanager
def _begun(
    draft: Path, job: Mapping[str, Any], files: Mapping[str, Path], report: _Reporter
) -> Iterator[sqlite3.Connection]:
    """The database of an unfinished build of this job, held for this process, with the entries of the side files."""
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
        # In one transaction: whoever goes on finds all of it or nothing.
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
        changed = [f"{key}: {begun[key]!r} then, {job[key]!r} now" for key in job if begun[key] != job[key]]
        if changed:
            raise CatalogueError(
                f"{str(draft)!r} was begun with other input ({'; '.join(changed)}); go on with that input, "
                "or remove that folder to start anew"
            )
        yield work


def _entries(role: str, path: Path) -> Iterator[tuple[bytes, str, str]]:
    for key, value, text in JsonFile(path, "[]" if role == "reviews" else "{}"):
        yield encode(str(value.get("asin")) if role == "reviews" else key), role, text


def _found(
    work: sqlite3.Connection, file: JsonFile, num_products: int | None, report: Callable[..., None]
) -> Iterator[Found]:
    """Products that have no rows yet, with what the other files hold of them.

    What is no product is left out: an unusable number, or one that was there before.
    """
    [num_held] = work.execute("SELECT coalesce(max(doc) + 1, 0) FROM products").fetchone()
    seen: set[bytes] = set()
    for number, record, text in islice(file, num_products):
        asin = record.get("asin")
        key = encode(str(asin))
        # What is no text at all is an error that the segment tells.
        if isinstance(asin, str) and (key in seen or not usable_asin(asin)):
            continue
        seen.add(key)
        doc = len(seen) - 1
        if doc == num_held:
            report("segments", file.fraction, number)
        if doc >= num_held:
            sides = work.execute("SELECT role, value FROM sides WHERE key = ? ORDER BY rowid", (key,))
            yield Found(doc, f"{file.path}, record {number}", text, sides.fetchall())


def _add_segment(work: sqlite3.Connection, segment: Segment) -> None:
    """Keep the rows of a segment, all or none."""
    with work:
        for table, rows in segment.items():
            if rows:
                work.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
