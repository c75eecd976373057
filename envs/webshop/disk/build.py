"""Builds a catalogue on disk from the original's files, in bounded memory, going on where an earlier try stopped.

The product file is cut into segments of some thousand records, which worker processes turn into files
(:mod:`envs.webshop.disk.segments`); then the segments are merged (:mod:`envs.webshop.disk.merge`). All of it happens in
``OUT.unfinished``, which is renamed to ``OUT`` at the very end.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.arguments import check_int
from envs.webshop.disk.blobs import Blobs, dump_json, encode, write_map
from envs.webshop.disk.format import (
    VERSION,
    CatalogueError,
    Source,
    manifest_to_dict,
    unfinished_name,
    write_json,
)
from envs.webshop.disk.json_stream import iter_array, iter_object
from envs.webshop.disk.merge import merge_segments
from envs.webshop.disk.pool import run_segments
from envs.webshop.disk.segments import SIDES, SegmentTask, segment_folder
from envs.webshop.original import find_file, usable_asin

try:
    import fcntl
except ImportError:  # not Unix: nothing keeps two builds apart
    HAVE_LOCKS = False
else:
    HAVE_LOCKS = True

__all__ = ["Progress", "build_index"]

SEGMENT_RECORDS = 10_000
_STEMS = {
    "attributes": "items_ins_v2",
    "human_instructions": "items_human_ins",
    "reviews": "reviews",
    "title_nouns": "title_nouns",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a build is."""

    stage: str
    """``side files``, ``segments``, ``products``, ``goals``, ``terms``, ``postings``, ``done``."""
    fraction: float
    """Of the stage."""
    products: int
    """Records read so far."""
    products_per_s: float
    """In this run; 0 before the first segment is finished."""
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
    files = _find_files(Path(source), attributes, human_instructions, num_products)
    try:
        _build(files, target, num_products, seed, workers, segment_records, _Reporter(progress or (lambda _: None)))
    except OSError as error:
        raise CatalogueError(
            f"building {str(target)!r} failed ({error}); make room or mend access, then the same command goes on"
        ) from error
    return target


def _build(
    files: Mapping[str, Path],
    target: Path,
    num_products: int | None,
    seed: int,
    workers: int,
    segment_records: int,
    reporter: _Reporter,
) -> None:
    job = {
        "version": VERSION,
        "seed": seed,
        "num_products": num_products,
        "segment_records": segment_records,
        # A file that was changed is noticed by size and time, without reading it.
        "files": {
            name: [str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns] for name, path in files.items()
        },
    }
    draft = unfinished_name(target)
    work = draft / "work"
    with _locked(draft):
        work.mkdir(exist_ok=True)
        _check_job(draft, job)
        # Where there is one, an earlier try was ended between this file and the new name of the folder.
        if not (draft / "manifest.json").exists():
            _make_maps(files, work, reporter)
            metas = _make_segments(files["products"], work, num_products, segment_records, workers, reporter)
            folders = [segment_folder(work, number) for number in range(len(metas))]
            sources = {name: Source(name=path.name, num_bytes=path.stat().st_size) for name, path in files.items()}
            manifest = merge_segments(folders, metas, draft, seed=seed, sources=sources, progress=reporter.stage)
            write_json(draft / "manifest.json", manifest_to_dict(manifest))
            reporter.stage("done", 1.0)
        shutil.rmtree(work, ignore_errors=True)
        for name in ("lock", "job.json"):
            (draft / name).unlink(missing_ok=True)
        # Last of all: whoever sees `target` sees all of it.
        draft.rename(target)


def _find_files(
    source: Path, attributes: str | Path | None, human_instructions: str | Path | None, num_products: int | None
) -> dict[str, Path]:
    """The input files by role; those that are not there are left out, unless they were asked for."""
    if source.is_dir():
        folder, products = source, find_file(source, "items_shuffle", num_products)
        if products is None:
            raise CatalogueError(f"there is no items_shuffle*.json in {str(source)!r}; give a folder that holds one")
    else:
        folder, products = source.parent, source
    given = {"attributes": attributes, "human_instructions": human_instructions}
    files = {"products": products}
    for name, stem in _STEMS.items():
        chosen = given.get(name)
        path = (
            Path(chosen)
            if chosen is not None
            else find_file(folder, stem, num_products if name == "attributes" else None)
        )
        if path is not None:
            files[name] = path
    for name, path in files.items():
        if not path.is_file():
            raise CatalogueError(f"there is no file {str(path)!r} (for {name}); give the path of a JSON file")
    return files


@contextmanager
def _locked(draft: Path) -> Iterator[None]:
    """Hold the folder of an unfinished build for this process."""
    draft.mkdir(parents=True, exist_ok=True)
    with (draft / "lock").open("w") as file:
        try:
            if HAVE_LOCKS:
                # Such a lock ends with the process, however that ends.
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CatalogueError(f"another process is building in {str(draft)!r}; wait for it, or end it") from None
        yield


def _check_job(draft: Path, job: Mapping[str, Any]) -> None:
    """Note what is built, or compare it with what an earlier try began."""
    path = draft / "job.json"
    if not path.exists():
        write_json(path, job)
        return
    begun = json.loads(path.read_text(encoding="utf-8"))
    changed = [
        f"{key}: {begun.get(key)!r} then, {value!r} now" for key, value in job.items() if begun.get(key) != value
    ]
    if changed:
        raise CatalogueError(
            f"{str(draft)!r} was begun with other input ({'; '.join(changed)}); go on with that input, "
            "or remove that folder to start anew"
        )


class _Reporter:
    """Reports the progress of a build: records per second and the time left."""

    def __init__(self, listener: Callable[[Progress], None]) -> None:
        self.listener = listener
        self.began_s = time.monotonic()
        self.products = self.first_products = 0
        self.first_fraction = 0.0

    def stage(self, stage: str, fraction: float) -> None:
        self.listener(Progress(stage=stage, fraction=fraction, products=self.products, products_per_s=0.0, eta_s=None))

    def begin_segments(self, products: int, fraction: float) -> None:
        self.began_s, self.first_products, self.first_fraction = time.monotonic(), products, fraction
        self.segments(products, fraction)

    def segments(self, products: int, fraction: float) -> None:
        self.products = products
        passed_s = max(time.monotonic() - self.began_s, 1e-9)
        # What an earlier try had finished says nothing about the speed of this one.
        gained = fraction - self.first_fraction
        self.listener(
            Progress(
                stage="segments",
                fraction=fraction,
                products=products,
                products_per_s=(products - self.first_products) / passed_s,
                eta_s=(1.0 - fraction) / gained * passed_s if gained > 0 else None,
            )
        )


def _make_maps(files: Mapping[str, Path], work: Path, reporter: _Reporter) -> None:
    for name in SIDES:
        path, made = files.get(name), work / "maps" / name
        if path is None or made.exists():
            continue
        made.parent.mkdir(exist_ok=True)
        reporter.stage("side files", 0.0)
        if name == "reviews":
            entries = ((str(record.value.get("asin")), record.value) for record in iter_array(path))
        else:
            entries = ((entry.key, entry.value) for entry in iter_object(path))
        write_map(made, ((encode(key), dump_json(value)) for key, value in entries))


def _make_segments(
    products: Path, work: Path, num_products: int | None, segment_records: int, workers: int, reporter: _Reporter
) -> list[dict[str, Any]]:
    """Make the segments that are not there yet; what is in each, in order."""
    (work / "segments").mkdir(exist_ok=True)
    # Left by workers that were killed.
    for draft in (work / "segments").glob("*.draft*"):
        shutil.rmtree(draft)
    size = max(products.stat().st_size, 1)
    finished = [json.loads(path.read_text()) for path in (work / "segments").glob("*/segment.json")]
    records = sum(meta["num_records"] for meta in finished)
    done_bytes = sum(meta["end"] - meta["start"] for meta in finished)
    reporter.begin_segments(records, done_bytes / size)
    planner = _Planner(products, work, num_products, segment_records)
    for task in run_segments(planner, products, work, workers):
        records += task.num_records
        done_bytes += task.end - task.start
        reporter.segments(records, done_bytes / size)
    return planner.finished_metas()


class _Planner(Iterator[SegmentTask]):
    """Reads through the product file ahead of the workers, finds the ends of segments and repeated products."""

    def __init__(self, products: Path, work: Path, num_products: int | None, segment_records: int) -> None:
        self.work, self.count = work, 0
        self.tasks = self._plan(products, num_products, segment_records)

    def __next__(self) -> SegmentTask:
        return next(self.tasks)

    def _plan(self, products: Path, num_products: int | None, segment_records: int) -> Iterator[SegmentTask]:
        seen: set[str] = set()
        start = first_record = 0
        reading = iter_array(products)
        while True:
            folder = segment_folder(self.work, self.count)
            if (folder / "segment.json").exists():
                meta = json.loads((folder / "segment.json").read_text())
                # A finished segment is not read again; only its product numbers are, to find repeated ones.
                asins = Blobs.of_files(folder, "asins")
                seen.update(asins[n].decode("utf-8", "surrogatepass") for n in range(len(asins)))
                start, first_record = meta["end"], first_record + meta["num_records"]
                self.count += 1
                reading = iter_array(products, start=start, first_number=first_record)
                continue
            left = segment_records if num_products is None else min(segment_records, num_products - first_record)
            skip: list[int] = []
            found, end = 0, start
            while found < left and (record := next(reading, None)) is not None:
                asin = record.value.get("asin")
                if isinstance(asin, str):
                    if not usable_asin(asin) or asin in seen:
                        # Left out but counted, so that messages name the record's place in the file.
                        skip.append(found)
                    seen.add(asin)
                found, end = found + 1, record.end
            if not found:
                return
            self.count += 1
            yield SegmentTask(
                number=self.count - 1,
                start=start,
                end=end,
                first_record=first_record,
                num_records=found,
                skip=tuple(skip),
            )
            start, first_record = end, first_record + found

    def finished_metas(self) -> list[dict[str, Any]]:
        """What is in each segment."""
        folders = [segment_folder(self.work, number) for number in range(self.count)]
        return [json.loads((folder / "segment.json").read_text()) for folder in folders]
