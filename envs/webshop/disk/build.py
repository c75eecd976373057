"""Builds a catalogue on disk from the original's files, in bounded memory, going on where an earlier try stopped.

The product file is cut into segments of some thousand records (:mod:`envs.webshop.disk.segments`), whose rows go into a
database, a transaction each; then they are merged (:mod:`envs.webshop.disk.merge`). All of it happens in
``OUT.unfinished``; the finished folder in it is renamed to ``OUT`` at the very end.
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
from envs.webshop.disk.format import VERSION, WORK, CatalogueError, Source, dump_json, encode, unfinished_name
from envs.webshop.disk.json_stream import iter_array, iter_object
from envs.webshop.disk.merge import merge_segments
from envs.webshop.disk.segments import SIDES, Segment, SegmentTask, make_segments
from envs.webshop.original import find_file, usable_asin

__all__ = ["Progress", "build_index"]

SEGMENT_RECORDS = 5_000

_TABLES = (
    "job (job TEXT)",
    "segments (number INTEGER PRIMARY KEY, end INTEGER, records INTEGER)",
    "products (doc INTEGER PRIMARY KEY, asin BLOB, length INTEGER, pricing BLOB, packed BLOB)",
    "goals (kind TEXT, doc INTEGER, combinations INTEGER, said BLOB)",
    "nouns (title BLOB, nouns BLOB)",
    "postings (segment INTEGER, term BLOB, pairs BLOB, PRIMARY KEY (segment, term)) WITHOUT ROWID",
)
"""Rows of segments, and what is built; ``end`` is a byte of the product file, the others are explained by
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
    segment_records: int = SEGMENT_RECORDS,
    progress: Callable[[Progress], None] | None = None,
) -> Path:
    """Build the catalogue ``out`` from ``source``: a data folder of the original, or its product file.

    The other files are those in the folder of the products unless they are given; the first ``num_products`` records
    count. ``workers=0`` does all the work in this process. A build that was interrupted is gone on with by the same
    call; the bytes that come out depend on the files, ``num_products`` and ``seed`` only. Raises
    :class:`CatalogueError` for files that are missing, damaged or changed since, and when ``out`` exists.
    """
    check_int("num_products", 1 if num_products is None else num_products, 1)
    check_int("workers", workers, 0)
    check_int("segment_records", segment_records, 1)
    target = Path(out).absolute()
    if target.exists():
        raise CatalogueError(f"{str(target)!r} exists already; choose another name, or remove it to build it anew")
    given = {"attributes": attributes, "human_instructions": human_instructions}
    files = _find_files(Path(source), given, num_products)
    stats = {role: path.stat() for role, path in files.items()}
    sources = {role: Source(name=path.name, num_bytes=stats[role].st_size) for role, path in files.items()}
    # A file that was changed is noticed by size and time, without reading it.
    found = [[role, str(files[role].absolute()), stat.st_size, stat.st_mtime_ns] for role, stat in stats.items()]
    job = {"version": VERSION, "seed": seed, "num_products": num_products, "files": found}
    report = _Reporter(progress or (lambda _: None))
    draft = unfinished_name(target)
    made, sides = draft / "made", draft / "sides.db"
    try:
        with _open_work(draft, job) as work:
            _make_sides(files, sides, report)
            tasks = _plan(work, files["products"], sides, num_products, segment_records)
            _add_segments(work, make_segments(tasks, workers), sources["products"].num_bytes, report)
            # Left by an earlier try that was ended while it merged.
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir()
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
def _open_work(draft: Path, job: Mapping[str, Any]) -> Iterator[sqlite3.Connection]:
    """The database of an unfinished build, held for this process; it must have been begun with the same job."""
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
        for table in _TABLES:
            work.execute(f"CREATE TABLE IF NOT EXISTS {table}")
        work.execute("INSERT INTO job SELECT ? WHERE NOT EXISTS (SELECT * FROM job)", (json.dumps(job),))
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


def _make_sides(files: Mapping[str, Path], sides: Path, report: _Reporter) -> None:
    """Put the entries of the other files into a database by product number; it appears when it is whole."""
    if sides.exists():
        return
    draft = sides.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    with closing(sqlite3.connect(draft)) as database:
        # A draft that was cut off is thrown away: a journal would gain nothing.
        database.execute("PRAGMA journal_mode = OFF")
        database.execute("CREATE TABLE sides (key BLOB, role TEXT, value BLOB)")
        for number, role in enumerate(SIDES):
            if role in files:
                report("side files", number / len(SIDES))
                rows = ((encode(key), role, dump_json(value)) for key, value in _entries(role, files[role]))
                database.executemany("INSERT INTO sides VALUES (?, ?, ?)", rows)
        # Afterwards, since sorting once is quicker than keeping an order.
        database.execute("CREATE INDEX by_key ON sides (key)")
        database.commit()
    draft.rename(sides)


def _entries(role: str, path: Path) -> Iterator[tuple[str, Any]]:
    if role == "reviews":
        return ((str(record.value.get("asin")), record.value) for record in iter_array(path))
    return iter_object(path)


def _finished(work: sqlite3.Connection) -> tuple[int, int, int]:
    """Number of segments, byte where they end, number of records."""
    counted = "SELECT count(*), coalesce(max(end), 0), coalesce(sum(records), 0) FROM segments"
    [number, end, num_records] = work.execute(counted).fetchone()
    return number, end, num_records


def _plan(
    work: sqlite3.Connection, products: Path, sides: Path, num_products: int | None, segment_records: int
) -> Iterator[SegmentTask]:
    """Read ahead through the product file for the ends of segments that are not made yet, and for repeated products."""
    number, end, record_number = _finished(work)
    seen = {asin for [asin] in work.execute("SELECT asin FROM products")}
    doc = len(seen)
    records = iter_array(products, start=end, first_number=record_number)
    while True:
        left = segment_records if num_products is None else min(segment_records, num_products - record_number)
        start, num_records, skip = end, 0, set()
        for record in islice(records, left):
            asin = record.value.get("asin")
            if isinstance(asin, str):
                if not usable_asin(asin) or encode(asin) in seen:
                    # Left out but counted, so that messages name the record's place in the file.
                    skip.add(record.number)
                seen.add(encode(asin))
            num_records, end = num_records + 1, record.end
        if not num_records:
            return
        yield SegmentTask(products, sides, number, start, end, record_number, num_records, frozenset(skip), doc)
        number, record_number, doc = number + 1, record_number + num_records, doc + num_records - len(skip)


def _add_segments(work: sqlite3.Connection, segments: Iterator[Segment], num_bytes: int, report: _Reporter) -> None:
    """Keep the rows of segments, all of one segment or none."""
    _, end, num_records = _finished(work)
    report("segments", end / num_bytes, num_records)
    for task, products, goals, nouns, postings in segments:
        with work:
            work.executemany("INSERT INTO products VALUES (?, ?, ?, ?, ?)", products)
            work.executemany("INSERT INTO goals VALUES (?, ?, ?, ?)", goals)
            work.executemany("INSERT INTO nouns VALUES (?, ?)", nouns)
            work.executemany("INSERT INTO postings VALUES (?, ?, ?)", postings)
            work.execute("INSERT INTO segments VALUES (?, ?, ?)", (task.number, task.end, task.num_records))
        report("segments", task.end / num_bytes, task.first_record + task.num_records)
