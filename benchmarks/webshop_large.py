"""The full-size shop: build, open, search and read a catalogue of a million generated products.

    python benchmarks/webshop_large.py [--count 1180000] [--listings DATA] [--workers 2] [--folder FOLDER] [--json]

Writes products of the shipped generator in the original's format (or, with ``--listings``, products put together from
the texts of a folder of real listings, which are three times as long), builds the catalogue in a process of its own
(whose memory is sampled, workers included), then opens and uses it in a fresh one. Times of searches and reads are
thread CPU time, with the files in the page cache. Leaves out: the pages and the reward, which do not depend on size.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

FULL = 1_180_000
"""Products in the original's full data."""

HUMAN_EVERY = 100
"""One product in this many gets the instructions written for it; the original has 12,087 of them in all."""

BUILD = "import sys; from envs.webshop.disk import build_index; build_index(*sys.argv[1:3], workers=int(sys.argv[3]))"
SEARCHES = 300
READS = 3000


class Made(NamedTuple):
    """A product in the formats of the original's files."""

    record: dict[str, Any]
    ins: dict[str, Any]
    human: list[dict[str, Any]]


def shipped(count: int) -> Iterator[Made]:
    """Products of the shipped generator."""
    from envs.webshop.shipped import generate

    return (Made(one.record, one.ins, one.human) for one in generate(count))


def recombined(listings: Path, count: int) -> Iterator[Made]:
    """Products whose title, description, bullets, options and price come from four listings, with some words of others.

    Words stay as frequent as they are in the listings, so that common ones are in hundreds of thousands of products.
    """
    [path] = listings.glob("items_shuffle*.json")
    records: list[dict[str, Any]] = json.loads(path.read_bytes())
    [path] = listings.glob("items_ins_v2*.json")
    entries = [entry for entry in json.loads(path.read_bytes()).values() if "instruction" in entry]
    words = [word for record in records for word in f"{record['name']} {record['full_description']}".split()]
    rng = random.Random(1)
    for number in range(count):
        first, second, third, fourth = rng.choices(records, k=4)
        title, other = first["name"].split(), second["name"].split()
        text, more = third["full_description"].split(), fourth["full_description"].split()
        half, cut = len(title) // 2, rng.randrange(len(text) + 1)
        model = f"m{rng.randrange(400_000):x}"
        name = [*title[:half], *rng.choices(words, k=3), *other[half : half + 12], model]
        description = [*text[cut:], *more[: rng.randrange(len(more) + 1)], *rng.choices(words, k=10)]
        asin = f"B{number * 2_654_435_761 % 16**9:09X}"
        made = rng.choice(entries) if rng.random() < 0.4 else {"attributes": []}
        wish = (
            f"i am looking for {first['query']}, {' '.join(name[:5])}, that would go well with {' '.join(other[:6])}."
        )
        yield Made(
            {
                **first,
                "asin": asin,
                "name": " ".join(name),
                "full_description": " ".join(description),
                "customization_options": fourth["customization_options"],
            },
            made,
            [{"instruction": wish, "instruction_attributes": made["attributes"][:2], "instruction_options": []}],
        )


def write_data(folder: Path, made_products: Iterator[Made]) -> None:
    """Products as ``items_shuffle.json`` and its two companions."""
    folder.mkdir(parents=True)
    human: dict[str, Any] = {}
    with (folder / "items_shuffle.json").open("w") as products, (folder / "items_ins_v2.json").open("w") as made:
        for number, one in enumerate(made_products):
            products.write(("[" if number == 0 else ", ") + json.dumps(one.record))
            made.write(("{" if number == 0 else ", ") + f"{json.dumps(one.record['asin'])}: {json.dumps(one.ins)}")
            if number % HUMAN_EVERY == 0:
                human[one.record["asin"]] = one.human
        products.write("]")
        made.write("}")
    (folder / "items_human_ins.json").write_text(json.dumps(human))


def memory_kb(pid: int | str) -> dict[str, int]:
    """Memory of a process by kind (Linux): ``Pss`` shares what is shared, ``Pss_Anon`` is what files do not back."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return {}
    return {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}


class MemoryWatch:
    """Samples the memory of a process and its children until it is closed."""

    def __init__(self, pid: int) -> None:
        self.pid, self.peak_kb, self.peak_anonymous_kb = pid, 0, 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while not self.over.wait(0.5):
            children: list[str] = []
            for path in Path(f"/proc/{self.pid}/task").glob("*/children"):
                with suppress(OSError):  # the thread has ended
                    children += path.read_text().split()
            found = [memory_kb(pid) for pid in (self.pid, *children)]
            self.peak_kb = max(self.peak_kb, sum(one.get("Pss", 0) for one in found))
            self.peak_anonymous_kb = max(self.peak_anonymous_kb, sum(one.get("Pss_Anon", 0) for one in found))

    def close(self) -> None:
        """Stop sampling."""
        self.over.set()
        self.thread.join()


def build(data: Path, out: Path, workers: int) -> dict[str, Any]:
    """Build in a process of its own; wall and CPU seconds, peak memory, size."""
    began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen([sys.executable, "-c", BUILD, str(data), str(out), str(workers)], cwd=ROOT)
    watch = MemoryWatch(process.pid)
    status = process.wait()
    watch.close()
    if status:
        raise SystemExit(f"the build ended with status {status}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "build_s": time.perf_counter() - began,
        "build_cpu_s": after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime,
        "build_peak_mb": watch.peak_kb / 1024,
        "build_peak_anonymous_mb": watch.peak_anonymous_kb / 1024,
        "data_mb": sum(path.stat().st_size for path in data.iterdir()) / 1e6,
        "index_mb": sum(path.stat().st_size for path in out.iterdir()) / 1e6,
        "database_mb": (out / "catalogue.db").stat().st_size / 1e6,
        "postings_mb": sum(path.stat().st_size for path in out.glob("postings*")) / 1e6,
    }


def timed(calls: Sequence[Callable[[], object]]) -> dict[str, float]:
    """Median, 95th percentile and maximum of one call, in milliseconds of thread CPU time."""
    times = []
    for call in calls:
        began = time.thread_time()
        call()
        times.append((time.thread_time() - began) * 1e3)
    times.sort()
    return {"p50": times[len(times) // 2], "p95": times[len(times) * 95 // 100], "max": times[-1]}


def measure(path: Path) -> dict[str, Any]:
    """Open a catalogue and use it; run in a fresh process."""
    began = time.perf_counter()
    from envs.webshop.disk import open_index
    from envs.webshop.search import term_weights

    imported = time.perf_counter()
    catalogue = open_index(path)
    opened = time.perf_counter()
    goals, by_people = catalogue.goals(human=False), catalogue.goals(human=True)
    store, index = catalogue.store, catalogue.index
    rng = random.Random(3)
    drawn = [goals[rng.randrange(len(goals))] for _ in range(SEARCHES)]
    human = [by_people[rng.randrange(len(by_people))] for _ in range(SEARCHES)]
    queries = {
        "instructions made from products": [goal.instruction for goal in drawn],
        "instructions in the words of people": [goal.instruction for goal in human],
        "titles": [store[rng.randrange(len(store))].title for _ in range(SEARCHES)],
        "keywords (kind and two attributes)": [" ".join((goal.query, *goal.attributes[:2])) for goal in drawn],
    }
    searches = {}
    for name, texts in queries.items():
        for text in texts:
            index.search(text, 50)
        terms = sum(len(term_weights(text)) for text in texts) / len(texts)
        searches[name] = {"terms": terms, **timed([lambda text=text: index.search(text, 50) for text in texts])}
    docs = [rng.randrange(len(store)) for _ in range(READS)]
    asins = [store[doc].asin for doc in docs]
    numbers = [rng.randrange(len(goals)) for _ in range(READS)]
    memory = memory_kb("self")
    return {
        "counts": dict(catalogue.manifest.counts),
        "import_s": imported - began,
        "open_s": opened - imported,
        "searches": searches,
        "reads": {
            "product by document": timed([lambda doc=doc: store[doc] for doc in docs]),
            "document by product number": timed([lambda asin=asin: store.find(asin) for asin in asins]),
            "synthetic goal": timed([lambda number=number: goals[number] for number in numbers]),
        },
        "private_mb": memory.get("Pss_Anon", 0) / 1024,
        "mapped_mb": memory.get("Pss_File", 0) / 1024,
    }


def table(result: dict[str, Any]) -> str:
    """The figures as Markdown."""
    counts, lines = result["counts"], ["| | |", "|---|---:|"]

    def row(name: str, value: str) -> None:
        lines.append(f"| {name} | {value} |")

    row("products", f"{counts['products']:,}")
    row("goals: synthetic, by people", f"{counts['synthetic_goals']:,}, {counts['human_goals']:,}")
    row("terms, postings", f"{counts['terms']:,}, {counts['postings']:,}")
    row("input files", f"{result['data_mb']:,.0f} MB")
    row("build, wall", f"{result['build_s']:,.0f} s")
    row("build, CPU of all processes", f"{result['build_cpu_s']:,.0f} s")
    row("peak memory of the build, all processes: not backed by files", f"{result['build_peak_anonymous_mb']:,.0f} MB")
    row("the same with mapped files", f"{result['build_peak_mb']:,.0f} MB")
    row("catalogue on disk", f"{result['index_mb']:,.0f} MB")
    row(
        "of it database (products, words, goals), postings",
        f"{result['database_mb']:,.0f} MB, {result['postings_mb']:,.0f} MB",
    )
    row("start: import, open", f"{result['import_s']:.2f} s, {result['open_s']:.3f} s")
    row("memory of a process after all searches and reads: its own", f"{result['private_mb']:,.0f} MB")
    row("mapped files in memory, shared by all processes", f"{result['mapped_mb']:,.0f} MB")
    lines += ["", "| top 50 of a search, ms CPU | mean terms | p50 | p95 | max |", "|---|---:|---:|---:|---:|"]
    for name, found in result["searches"].items():
        lines.append(
            f"| {name} | {found['terms']:.1f} | {found['p50']:.1f} | {found['p95']:.1f} | {found['max']:.1f} |"
        )
    lines += ["", "| one read, ms CPU | p50 | p95 |", "|---|---:|---:|"]
    for name, found in result["reads"].items():
        lines.append(f"| {name} | {found['p50']:.3f} | {found['p95']:.3f} |")
    return "\n".join(lines)


def run(folder: Path, made_products: Iterator[Made], workers: int) -> dict[str, Any]:
    """Everything, in an empty folder."""
    began = time.perf_counter()
    write_data(folder / "data", made_products)
    generated_s = time.perf_counter() - began
    built = build(folder / "data", folder / "catalogue", workers)
    command = [sys.executable, __file__, "--measure", str(folder / "catalogue")]
    measured = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    return {
        "date": str(date.today()),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "load_average": os.getloadavg(),
        "workers": workers,
        "generate_s": generated_s,
        **built,
        **measured,
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=FULL)
    parser.add_argument(
        "--listings", type=Path, metavar="DATA", help="folder of real listings to put products together from"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--folder", type=Path, help="where the files go (default: a temporary folder); removed at the end"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", type=Path, metavar="CATALOGUE", help="only open and use this catalogue; JSON")
    options = parser.parse_args()
    if options.measure is not None:
        print(json.dumps(measure(options.measure)))
        return
    made_products = shipped(options.count) if options.listings is None else recombined(options.listings, options.count)
    folder = Path(tempfile.mkdtemp(prefix="webshop_large_", dir=options.folder))
    try:
        result = run(folder, made_products, options.workers)
    finally:
        shutil.rmtree(folder)
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        print(f"{result['date']}, {result['machine']}, load {result['load_average'][0]:.1f}\n")
        print(table(result))


if __name__ == "__main__":
    main()
