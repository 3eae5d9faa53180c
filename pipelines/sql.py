"""Views → Flink SQL text: the whole feature job, as statements in the order in which they are executed.

Pure text: nothing here knows Flink's classes. A source becomes a chain of views, each record takes one way through it:

    topic ─► decoded ─► fields ─┬─ reason IS NOT NULL ──────────► dead_letters   malformed
             (one call a record)└─ counted ─► fates ─┬─ fate <> 'used' ─► ledger      duplicate, future, late, before_seam
                                                     └─ used ─┬─► GROUP BY key, tile ─► write_<tile group>
                                                              └─► write_<last group>

The write functions (pipelines/sink.py) put a batch into Redis and return one status a row straight into `blackhole`: a
filter, count or second use above them would bring old rows into them or run them twice. Golden text:
tests/golden/sql/. Read `pipelines/jobs/features.py` next for who executes this.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from features.expr import Program, to_sql
from features.records import DEAD_LETTERS, LEDGER, RECORD_OF_TOPIC
from features.spec import PROJECT, Catalogue, LastField, LastGroup, Source, TileGroup
from features.tile_sql import TileSql, key_condition
from features.window import sql_tile
from pipelines.dead_letter import MAX_MESSAGE_BYTES
from pipelines.jobs.options import JobOptions, feature_settings
from pipelines.progress import Progress

SQL_TYPES: Final = {"int": "BIGINT", "double": "DOUBLE", "bool": "BOOLEAN", "string": "STRING"}
KAFKA_COLUMNS: Final = ("kafka_partition", "kafka_offset", "kafka_appended", "kafka_key")


@dataclass(frozen=True, kw_only=True)
class DecodeFunction:
    """`name(bytes) -> ROW<reason, path, columns…>`: reason is null for a good record, else the columns are."""

    name: str
    topic: str
    columns: tuple[tuple[str, str], ...]  # (column, its type: "int", "string", …)


@dataclass(frozen=True, kw_only=True)
class WriteFunction:
    """`name(key, …) -> TINYINT` writes the rows of one group under one generation."""

    name: str
    group: TileGroup | LastGroup
    generation: int
    life: str | None = None  # what the generation's marker says (features.registry.AppliedGroup)
    progress: Progress | None = None  # where the heartbeat comes from in a job of several tasks; None: from the rows


@dataclass(frozen=True, kw_only=True)
class FeatureJobSql:
    """The job as text. Execution order: settings, functions, tables, views, then all inserts as one statement set."""

    name: str
    settings: Mapping[str, str]
    decoders: tuple[DecodeFunction, ...]
    writers: tuple[WriteFunction, ...]
    tables: tuple[str, ...]
    views: tuple[str, ...]
    inserts: tuple[str, ...]

    def text(self) -> str:
        """All of it, as `hailstream jobs render` prints it."""
        lines = [f"-- {self.name}", ""]
        lines += [f"SET '{key}' = '{value}';" for key, value in self.settings.items()]
        lines += ["", "-- Python functions, registered by pipelines/jobs/features.py:"]
        for decoder in self.decoders:
            row = ", ".join(f"{column} {SQL_TYPES[kind]}" for column, kind in decoder.columns)
            lines.append(f"--   {decoder.name}(BYTES) -> ROW<reason STRING, path STRING, {row}>")
        lines.append("--   dead_letter(topic, partition, offset, reason, path, BYTES) -> BYTES")
        lines.append("--   ledger_entry(topic, partition, offset, fate, key, event_id, lateness_ms, effect) -> BYTES")
        for writer in self.writers:
            lines.append(f"--   {writer.name}(…) -> TINYINT writes {writer.group.name}, generation {writer.generation}")
        statements = "\n\n".join(f"{statement};" for statement in (*self.tables, *self.views))
        inserts = "\n\n".join(f"{statement};" for statement in self.inserts)
        return "\n".join([*lines, "", statements, "", "BEGIN STATEMENT SET;", "", inserts, "", "END;", ""])


def render_feature_job(
    catalogue: Catalogue,
    generations: Mapping[str, int],
    options: JobOptions,
    lives: Mapping[str, str] | None = None,
) -> FeatureJobSql:
    """The job that feeds every group of the catalogue. `generations` maps each group's name to its generation.

    `lives` maps it to what its marker says. With `options.seam_ms` it is the job of a staged version, which owns event
    times from there on: it also feeds the groups that did not change, where it writes what the other job has written,
    so that it can take that one's place.

    Raises: ValueError naming the groups that have no generation (they were not applied).
    """
    groups = catalogue.groups()
    missing = sorted(group.name for group in groups if group.name not in generations)
    if missing or not groups:
        raise ValueError(
            f"not applied: {', '.join(missing) or 'no view at all'}; run `hailstream features apply` first"
        )
    name = job_name(generations, options.project, options.seam_ms)
    group_id = consumer_group(
        generations, options.project, options.seam_ms, parallelism=options.parallelism, lives=lives
    )
    text = _Text(lives or {}, group_id)
    for topic in (DEAD_LETTERS, LEDGER):
        text.tables.append(_kafka_sink(topic, name, options))
    for source in catalogue.streams.values():
        if catalogue.groups_of(source.name):
            _add_source(text, source, catalogue, generations, options)
    horizons = [s.dedup.horizon_ms for s in catalogue.streams.values() if s.dedup and catalogue.groups_of(s.name)]
    return FeatureJobSql(
        name=name,
        settings=feature_settings(name, max(horizons, default=0), options),
        decoders=tuple(text.decoders),
        writers=tuple(text.writers),
        tables=tuple(text.tables),
        views=tuple(text.views),
        inserts=tuple(text.inserts),
    )


def job_name(generations: Mapping[str, int], project: str = PROJECT, seam_ms: int | None = None) -> str:
    """`hailstream-features-g<generation>`: the newest generation that the job writes; `…-from<seam>` of a staged version.

    A name for people. Which groups it feeds is in the job's parameters (`pipelines/jobs/running.py`).
    """
    name = f"{project}-features-g{max(generations.values())}"
    return name if seam_ms is None else f"{name}-from{seam_ms}"


@dataclass
class _Text:
    lives: Mapping[str, str]
    consumer_group: str
    decoders: list[DecodeFunction] = field(default_factory=list)
    writers: list[WriteFunction] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    views: list[str] = field(default_factory=list)
    inserts: list[str] = field(default_factory=list)


def _add_source(
    text: _Text, source: Source, catalogue: Catalogue, generations: Mapping[str, int], options: JobOptions
) -> None:
    columns = _columns(source, catalogue)
    text.decoders.append(
        DecodeFunction(
            name=f"decode_{source.name}",
            topic=source.topic,
            columns=tuple((column, source.schema[column].rstrip("?")) for column in columns),
        )
    )
    text.tables.append(_kafka_source(source, text.consumer_group, options))
    text.views += _fate_views(source, columns, options.seam_ms)
    text.inserts += [_insert_dead_letters(source), _insert_ledger(source, catalogue)]
    for group in catalogue.groups_of(source.name):
        name = _identifier(group)
        life = text.lives.get(group.name)
        text.writers.append(
            WriteFunction(
                name=f"write_{name}",
                group=group,
                generation=generations[group.name],
                life=life,
                progress=_progress(source, text.consumer_group, options),
            )
        )
        text.tables.append(
            f"CREATE TEMPORARY TABLE `written_{name}` (\n  `status` TINYINT\n) WITH ('connector' = 'blackhole')"
        )
        if isinstance(group, TileGroup):
            text.views.append(_tile_rows(group))
            text.inserts.append(_insert_tiles(group, options))
        else:
            text.inserts.append(_insert_last(group))


def _columns(source: Source, catalogue: Catalogue) -> tuple[str, ...]:
    """The columns that the job needs, in the schema's order: each one costs a conversion into Python and back.

    Raises: ValueError for a topic without records of its own, or a column that those records do not have.
    """
    needed = {source.event_id, source.event_time, source.ingest_time}
    if source.dedup is not None:
        needed.add(source.dedup.by)
    for group in catalogue.groups_of(source.name):
        needed.update(group.key_fields)
        needed.update(*(program.names for program in group.programs))
    record = RECORD_OF_TOPIC.get(source.topic)
    if record is None:
        raise ValueError(
            f"source {source.name}: topic {source.topic!r} has no record; known are {sorted(RECORD_OF_TOPIC)}"
        )
    unknown = needed - {known.name for known in msgspec.structs.fields(record)}
    if unknown:
        raise ValueError(f"source {source.name}: {record.__name__} (features/records.py) has no {sorted(unknown)}")
    return tuple(column for column in source.schema if column in needed)


def consumer_group(
    generations: Mapping[str, int],
    project: str = PROJECT,
    seam_ms: int | None = None,
    *,
    parallelism: int = 1,
    lives: Mapping[str, str] | None = None,
) -> str:
    """Under which name a job commits how far it has read, at every checkpoint. That of a staged version has its own, so
    that the switch can ask whether it has caught up; and so has a job of several tasks, of what it writes to: its heartbeat
    is read from there, and another generation's offsets would promise rows that this one never got."""
    if seam_ms is not None:
        return job_name(generations, project, seam_ms)
    if parallelism == 1:
        return "hailstream-features"
    fed = "".join(f"{group}@{number} {(lives or {}).get(group)}\n" for group, number in sorted(generations.items()))
    return f"{project}-features-{hashlib.sha256(fed.encode()).hexdigest()[:16]}"


def _progress(source: Source, group: str, options: JobOptions) -> Progress | None:
    if options.parallelism == 1:
        return None
    return Progress(
        kafka=options.kafka,
        topic=source.topic,
        consumer_group=group,
        ingest_time=source.ingest_time,
        future_ms=source.future_ms,
    )


def _kafka_source(source: Source, group: str, options: JobOptions) -> str:
    return f"""CREATE TEMPORARY TABLE `{source.name}` (
  `kafka_key` BYTES,
  `kafka_value` BYTES,
  `kafka_partition` INT METADATA FROM 'partition' VIRTUAL,
  `kafka_offset` BIGINT METADATA FROM 'offset' VIRTUAL,
  `kafka_appended` TIMESTAMP_LTZ(3) METADATA FROM 'timestamp' VIRTUAL
) WITH (
  'connector' = 'kafka',
  'topic' = '{source.topic}',
  'properties.bootstrap.servers' = '{options.kafka}',
  'properties.group.id' = '{group}',
  'properties.isolation.level' = 'read_committed',
  'properties.fetch.max.wait.ms' = '50',
  {_start(source, options.seam_ms)},
  'key.format' = 'raw',
  'key.fields' = 'kafka_key',
  'value.format' = 'raw',
  'value.fields-include' = 'EXCEPT_KEY'
)"""


def _start(source: Source, seam_ms: int | None) -> str:
    """A record of event time t was known at t - future at the earliest, and appended within that bound again."""
    if seam_ms is None:
        return "'scan.startup.mode' = 'earliest-offset'"
    first_ms = max(seam_ms - 2 * source.future_ms, 0)
    return f"'scan.startup.mode' = 'timestamp',\n  'scan.startup.timestamp-millis' = '{first_ms}'"


def _kafka_sink(topic: str, name: str, options: JobOptions) -> str:
    """Exactly once: after a restart another copy of a pair may be the duplicate, and then both would stand in the ledger.

    POOLING finds and aborts open transactions of its prefix at start, so that a cancelled job does not hold up readers.
    """
    return f"""CREATE TEMPORARY TABLE `{topic}` (
  `message` BYTES
) WITH (
  'connector' = 'kafka',
  'topic' = '{topic}',
  'properties.bootstrap.servers' = '{options.kafka}',
  'properties.transaction.timeout.ms' = '{options.transaction_timeout_ms}',
  'properties.max.request.size' = '{MAX_MESSAGE_BYTES}',
  'properties.compression.type' = 'lz4',
  'format' = 'raw',
  'sink.delivery-guarantee' = 'exactly-once',
  'sink.transaction-naming-strategy' = 'POOLING',
  'sink.transactional-id-prefix' = '{name}-{topic}'
)"""


def _fate_views(source: Source, columns: tuple[str, ...], seam_ms: int | None) -> list[str]:
    """decoded → fields → (counted →) fates → used."""
    base, carried = source.name, ", ".join(f"`{c}`" for c in (*KAFKA_COLUMNS, *columns))
    fields = ",\n  ".join(f"`record`.`{column}` AS `{column}`" for column in ("reason", "path", *columns))
    kafka = ", ".join(f"`{column}`" for column in KAFKA_COLUMNS)
    views = [
        f"CREATE TEMPORARY VIEW `{base}_decoded` AS\n"
        f"SELECT {kafka}, `kafka_value`, decode_{base}(`kafka_value`) AS `record`\nFROM `{base}`",
        f"CREATE TEMPORARY VIEW `{base}_fields` AS\nSELECT {kafka}, `kafka_value`,\n  {fields}\nFROM `{base}_decoded`",
    ]
    late = f"`{source.ingest_time}` - `{source.event_time}` > {source.disorder_ms}"
    # Also a record that claims to be known before the broker had it: one such would move the applied-through time for good.
    future = (
        f"`{source.event_time}` - `{source.ingest_time}` > {source.future_ms}"
        f" OR `{source.ingest_time}` - ({_epoch_ms('kafka_appended')}) > {source.future_ms}"
    )
    if source.dedup is None:
        good, duplicate = f"`{base}_fields`\nWHERE `reason` IS NULL", ""
    else:
        good, duplicate = f"`{base}_counted`", "WHEN `copy` > 1 THEN 'duplicate' "
        # A running count over arrival stays insert-only; ROW_NUMBER would not, and could not report the copies.
        views.append(
            f"CREATE TEMPORARY VIEW `{base}_counted` AS\nSELECT {carried},\n"
            f"  COUNT(*) OVER (PARTITION BY `{source.dedup.by}` ORDER BY `arrival` "
            "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS `copy`\n"
            f"FROM (\n  SELECT {carried}, PROCTIME() AS `arrival`\n  FROM `{base}_fields`\n  WHERE `reason` IS NULL\n)"
        )
    early = "" if seam_ms is None else f"WHEN `{source.event_time}` < {seam_ms} THEN 'before_seam' "
    views.append(
        f"CREATE TEMPORARY VIEW `{base}_fates` AS\nSELECT {carried},\n"
        f"  CASE {duplicate}WHEN {future} THEN 'future' WHEN {late} THEN 'late' {early}ELSE 'used' END AS `fate`\nFROM {good}"
    )
    views.append(
        f"CREATE TEMPORARY VIEW `{base}_used` AS\nSELECT {carried}\nFROM `{base}_fates`\nWHERE `fate` = 'used'"
    )
    return views


def _insert_dead_letters(source: Source) -> str:
    return (
        f"INSERT INTO `{DEAD_LETTERS}`\n"
        f"SELECT dead_letter('{source.topic}', `kafka_partition`, `kafka_offset`, `reason`, `path`, `kafka_value`)\n"
        f"FROM `{source.name}_fields`\nWHERE `reason` IS NOT NULL"
    )


def _insert_ledger(source: Source, catalogue: Catalogue) -> str:
    """`effect` says which tiles and values the record would have changed: `group[key]@tile`, `group[key]`."""
    effects = []
    for group in catalogue.groups_of(source.name):
        tile = (
            f" || CAST({sql_tile(f'`{source.event_time}`', group.hop_ms)} AS STRING)"
            if isinstance(group, TileGroup)
            else ""
        )
        mark = "]@" if tile else "]"
        key = " || ',' || ".join(f"CAST(`{column}` AS STRING)" for column in group.key_fields)
        effects.append(f"'{group.name}[' || {key} || '{mark}'{tile}")
    listed = ",\n    ".join(effects)
    return (
        f"INSERT INTO `{LEDGER}`\n"
        f"SELECT ledger_entry('{source.topic}', `kafka_partition`, `kafka_offset`, `fate`, `kafka_key`, `{source.event_id}`,\n"
        f"  `{source.ingest_time}` - `{source.event_time}`,\n  CONCAT_WS(' ',\n    {listed}))\n"
        f"FROM `{source.name}_fates`\nWHERE `fate` <> 'used'"
    )


def _tile_rows(group: TileGroup) -> str:
    """What the GROUP BY reads, under a name of its own: the state's TTL is a hint on that name."""
    name, source = _identifier(group), group.source
    keys = [f"`{column}` AS `{name}`" for column, name in zip(group.key_fields, _key_names(group), strict=True)]
    carried = [*keys, f"`{source.ingest_time}` AS `ingested_ms`", "`kafka_appended`"]
    rows = TileSql(group, "flink").rows(f"`{source.name}_used`", carried, _has_key(group))
    return f"CREATE TEMPORARY VIEW `{name}_rows` AS\n{rows}"


def _insert_tiles(group: TileGroup, options: JobOptions) -> str:
    name = _identifier(group)
    ttl_ms = group.hop_ms + group.source.disorder_ms + options.max_outage_ms
    aggregates = zip(group.partials, TileSql(group, "flink").partials(), strict=True)
    partials = "".join(f",\n    {aggregate} AS `{partial.name}`" for partial, aggregate in aggregates)
    names = "".join(f", `{partial.name}`" for partial in group.partials)
    keys = ", ".join(f"`{column}`" for column in _key_names(group))
    return (
        f"INSERT INTO `written_{name}`\n"
        f"SELECT write_{name}({keys}, `tile`, `num_events`, `applied_through_ms`, {_epoch_ms('kafka_appended')}{names})\n"
        f"FROM (\n  SELECT /*+ STATE_TTL('{name}_rows' = '{ttl_ms} ms') */ {keys}, `tile`,\n"
        "    COUNT(*) AS `num_events`,\n    MAX(`ingested_ms`) AS `applied_through_ms`,\n"
        f"    MAX(`kafka_appended`) AS `kafka_appended`{partials}\n"
        f"  FROM `{name}_rows`\n  GROUP BY {keys}, `tile`\n)"
    )


def _insert_last(group: LastGroup) -> str:
    name, source = _identifier(group), group.source
    values = "".join(f",\n  {_last_value(part)}" for part in group.fields)
    keys = ", ".join(f"`{column}`" for column in group.key_fields)
    return (
        f"INSERT INTO `written_{name}`\n"
        f"SELECT write_{name}({keys}, `{source.event_time}`, `{source.event_id}`, `kafka_partition`, `kafka_offset`,\n"
        f"  `{source.ingest_time}`, {_epoch_ms('kafka_appended')}{values})\n"
        f"FROM `{source.name}_used`\nWHERE {_has_key(group)}"
    )


def _key_names(group: TileGroup) -> tuple[str, ...]:
    """What the key's columns are called in the rows that the GROUP BY reads."""
    if len(group.key_fields) == 1:
        return ("group_key",)
    return tuple(f"group_key_{i}" for i in range(len(group.key_fields)))


def _has_key(group: TileGroup | LastGroup) -> str:
    return key_condition(group, "flink")


def _last_value(part: LastField) -> str:
    """An int that can be null crosses into Python as text: pandas holds such a column as doubles, exact below 2^53."""
    value = f"CAST({_sql(part.of)} AS {SQL_TYPES[part.type]})"
    if part.type == "int" and (part.of.type.nullable or part.where is not None):
        value = f"CAST({value} AS STRING)"
    return value if part.where is None else f"CASE WHEN {_sql(part.where)} THEN {value} END"


def _sql(program: Program) -> str:
    return to_sql(program, "flink", lambda name: f"`{name}`")


def _epoch_ms(column: str) -> str:
    """A TIMESTAMP_LTZ as BIGINT milliseconds: timestamps cross into Python differently from mode to mode."""
    return f"EXTRACT(EPOCH FROM `{column}`) * 1000 + EXTRACT(MILLISECOND FROM `{column}`)"


def _identifier(group: TileGroup | LastGroup) -> str:
    return group.name.replace(".", "_")
