"""Ingest on a Spark cluster: the only module that knows pyspark.

Items are listed here and read where the tasks run: the source must be reachable there under the same name, and
headrace installed. A task that Spark runs again stores nothing twice.
"""

import itertools
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from headrace.core.errors import HeadraceError, IngestError, MissingDriver
from headrace.store.ingest.outcome import IngestTally
from headrace.store.ingest.sources.item_source import Item
from headrace.store.ingest.work import Ingester, IngestJob

CHUNKS_PER_CORE = 8
"""Chunks in one Spark job: enough to even out, few enough that progress is seen and little is held here."""


def by_spark(
    job: IngestJob, chunks: Iterator[Sequence[Item]], master: str, settings: Mapping[str, str]
) -> Iterator[IngestTally]:
    """Tallies as Spark jobs end. The Spark session is stopped at the end, or when this is closed early."""
    with _context(master, settings) as context:
        wave = max(1, context.defaultParallelism) * CHUNKS_PER_CORE
        while several := list(itertools.islice(chunks, wave)):
            slices = min(len(several), max(1, context.defaultParallelism) * 2)
            yield from _run(context.parallelize(several, slices).mapPartitions(_partition(job)))


def _run(tasks: Any) -> Iterator[IngestTally]:
    try:
        answers = tasks.collect()
    except HeadraceError:
        raise
    except Exception as error:
        raise IngestError(f"Spark: {_cause(error)}") from error
    for answer in answers:
        if isinstance(answer, HeadraceError):
            raise answer
        yield answer


def _partition(job: IngestJob) -> Any:
    def take(chunks: Iterator[Sequence[Item]]) -> Iterator[IngestTally | HeadraceError]:
        try:
            with Ingester(job) as ingester:
                for items in chunks:
                    yield ingester.take(items)
        except HeadraceError as error:
            yield error

    return take


@contextmanager
def _context(master: str, settings: Mapping[str, str]) -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # on pandas, which is not used here
        session = _session(master, settings)
    try:
        session.sparkContext.setLogLevel("ERROR")
        yield session.sparkContext
    finally:
        session.stop()


def _session(master: str, settings: Mapping[str, str]) -> Any:
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415  (an extra)
    except ImportError:
        raise MissingDriver("Spark needs its library and a JDK: pip install 'headrace[spark]'") from None
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else tasks run in whatever python3 is, without headrace
    builder = (
        SparkSession.builder.master(master).appName("headrace ingest").config("spark.ui.showConsoleProgress", "false")
    )
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        for name, value in (("ui.enabled", "false"), ("driver.host", "127.0.0.1"), ("driver.bindAddress", "127.0.0.1")):
            builder = builder.config(f"spark.{name}", value)
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except Exception as error:
        raise IngestError(f"Spark at {master} cannot be reached: {_cause(error)}") from error


def _cause(error: Exception) -> str:
    """Java's last word on it, without the stack."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.strip().startswith("at ")]
    told = [line for line in lines if "Error" in line or "Exception" in line]
    return (told or lines or [type(error).__name__])[-1].lstrip(": ")[:300]
