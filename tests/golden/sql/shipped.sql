-- hailstream-features-g1

SET 'pipeline.name' = 'hailstream-features-g1';
SET 'parallelism.default' = '1';
SET 'table.local-time-zone' = 'UTC';
SET 'pipeline.object-reuse' = 'true';
SET 'execution.buffer-timeout.interval' = '20 ms';
SET 'execution.checkpointing.interval' = '2000 ms';
SET 'execution.checkpointing.mode' = 'EXACTLY_ONCE';
SET 'execution.checkpointing.externalized-checkpoint-retention' = 'RETAIN_ON_CANCELLATION';
SET 'state.backend.type' = 'hashmap';
SET 'state.backend.incremental' = 'false';
SET 'restart-strategy.type' = 'fixed-delay';
SET 'restart-strategy.fixed-delay.attempts' = '2147483647';
SET 'restart-strategy.fixed-delay.delay' = '1 s';
SET 'table.optimizer.reuse-optimize-block-with-digest-enabled' = 'true';
SET 'table.exec.mini-batch.enabled' = 'true';
SET 'table.exec.mini-batch.allow-latency' = '100 ms';
SET 'table.exec.mini-batch.size' = '20000';
SET 'table.exec.state.ttl' = '3600000 ms';
SET 'python.execution-mode' = 'process';
SET 'python.fn-execution.bundle.size' = '10000';
SET 'python.fn-execution.arrow.batch.size' = '10000';
SET 'python.fn-execution.bundle.time' = '50';
SET 'execution.checkpointing.timeout' = '10 min';
SET 'execution.checkpointing.tolerable-failed-checkpoints' = '1000000';

-- Python functions, registered by pipelines/jobs/features.py:
--   decode_trip_events(BYTES) -> ROW<reason STRING, path STRING, event_id STRING, event_type STRING, driver_id STRING, pickup_zone BIGINT, dropoff_zone BIGINT, event_time_ms BIGINT, ingest_time_ms BIGINT, fare_cents BIGINT, distance_m BIGINT>
--   decode_driver_events(BYTES) -> ROW<reason STRING, path STRING, event_id STRING, driver_id STRING, status STRING, zone BIGINT, event_time_ms BIGINT, ingest_time_ms BIGINT>
--   dead_letter(topic, partition, offset, reason, path, BYTES) -> BYTES
--   ledger_entry(topic, partition, offset, fate, key, event_id, lateness_ms, effect) -> BYTES
--   write_driver_trip_events_60000(…) -> TINYINT writes driver.trip_events.60000, generation 1
--   write_driver_trip_events_900000(…) -> TINYINT writes driver.trip_events.900000, generation 1
--   write_zone_trip_events_60000_pickup_zone(…) -> TINYINT writes zone.trip_events.60000.pickup_zone, generation 1
--   write_zone_trip_events_300000_pickup_zone(…) -> TINYINT writes zone.trip_events.300000.pickup_zone, generation 1
--   write_driver_trip_events_last(…) -> TINYINT writes driver.trip_events.last, generation 1
--   write_driver_driver_events_last(…) -> TINYINT writes driver.driver_events.last, generation 1

CREATE TEMPORARY TABLE `dead_letters` (
  `message` BYTES
) WITH (
  'connector' = 'kafka',
  'topic' = 'dead_letters',
  'properties.bootstrap.servers' = 'broker:9092',
  'properties.transaction.timeout.ms' = '900000',
  'properties.max.request.size' = '2097152',
  'properties.compression.type' = 'lz4',
  'format' = 'raw',
  'sink.delivery-guarantee' = 'exactly-once',
  'sink.transaction-naming-strategy' = 'POOLING',
  'sink.transactional-id-prefix' = 'hailstream-features-g1-dead_letters'
);

CREATE TEMPORARY TABLE `ledger` (
  `message` BYTES
) WITH (
  'connector' = 'kafka',
  'topic' = 'ledger',
  'properties.bootstrap.servers' = 'broker:9092',
  'properties.transaction.timeout.ms' = '900000',
  'properties.max.request.size' = '2097152',
  'properties.compression.type' = 'lz4',
  'format' = 'raw',
  'sink.delivery-guarantee' = 'exactly-once',
  'sink.transaction-naming-strategy' = 'POOLING',
  'sink.transactional-id-prefix' = 'hailstream-features-g1-ledger'
);

CREATE TEMPORARY TABLE `trip_events` (
  `kafka_key` BYTES,
  `kafka_value` BYTES,
  `kafka_partition` INT METADATA FROM 'partition' VIRTUAL,
  `kafka_offset` BIGINT METADATA FROM 'offset' VIRTUAL,
  `kafka_appended` TIMESTAMP_LTZ(3) METADATA FROM 'timestamp' VIRTUAL
) WITH (
  'connector' = 'kafka',
  'topic' = 'trip_events',
  'properties.bootstrap.servers' = 'broker:9092',
  'properties.group.id' = 'hailstream-features',
  'properties.isolation.level' = 'read_committed',
  'properties.fetch.max.wait.ms' = '50',
  'scan.startup.mode' = 'earliest-offset',
  'key.format' = 'raw',
  'key.fields' = 'kafka_key',
  'value.format' = 'raw',
  'value.fields-include' = 'EXCEPT_KEY'
);

CREATE TEMPORARY TABLE `written_driver_trip_events_60000` (
  `status` TINYINT
) WITH ('connector' = 'blackhole');

CREATE TEMPORARY TABLE `written_driver_trip_events_900000` (
  `status` TINYINT
) WITH ('connector' = 'blackhole');

CREATE TEMPORARY TABLE `written_zone_trip_events_60000_pickup_zone` (
  `status` TINYINT
) WITH ('connector' = 'blackhole');

CREATE TEMPORARY TABLE `written_zone_trip_events_300000_pickup_zone` (
  `status` TINYINT
) WITH ('connector' = 'blackhole');

CREATE TEMPORARY TABLE `written_driver_trip_events_last` (
  `status` TINYINT
) WITH ('connector' = 'blackhole');

CREATE TEMPORARY TABLE `driver_events` (
  `kafka_key` BYTES,
  `kafka_value` BYTES,
  `kafka_partition` INT METADATA FROM 'partition' VIRTUAL,
  `kafka_offset` BIGINT METADATA FROM 'offset' VIRTUAL,
  `kafka_appended` TIMESTAMP_LTZ(3) METADATA FROM 'timestamp' VIRTUAL
) WITH (
  'connector' = 'kafka',
  'topic' = 'driver_events',
  'properties.bootstrap.servers' = 'broker:9092',
  'properties.group.id' = 'hailstream-features',
  'properties.isolation.level' = 'read_committed',
  'properties.fetch.max.wait.ms' = '50',
  'scan.startup.mode' = 'earliest-offset',
  'key.format' = 'raw',
  'key.fields' = 'kafka_key',
  'value.format' = 'raw',
  'value.fields-include' = 'EXCEPT_KEY'
);

CREATE TEMPORARY TABLE `written_driver_driver_events_last` (
  `status` TINYINT
) WITH ('connector' = 'blackhole');

CREATE TEMPORARY VIEW `trip_events_decoded` AS
SELECT `kafka_partition`, `kafka_offset`, `kafka_appended`, `kafka_key`, `kafka_value`, decode_trip_events(`kafka_value`) AS `record`
FROM `trip_events`;

CREATE TEMPORARY VIEW `trip_events_fields` AS
SELECT `kafka_partition`, `kafka_offset`, `kafka_appended`, `kafka_key`, `kafka_value`,
  `record`.`reason` AS `reason`,
  `record`.`path` AS `path`,
  `record`.`event_id` AS `event_id`,
  `record`.`event_type` AS `event_type`,
  `record`.`driver_id` AS `driver_id`,
  `record`.`pickup_zone` AS `pickup_zone`,
  `record`.`dropoff_zone` AS `dropoff_zone`,
  `record`.`event_time_ms` AS `event_time_ms`,
  `record`.`ingest_time_ms` AS `ingest_time_ms`,
  `record`.`fare_cents` AS `fare_cents`,
  `record`.`distance_m` AS `distance_m`
FROM `trip_events_decoded`;

CREATE TEMPORARY VIEW `trip_events_counted` AS
SELECT `kafka_partition`, `kafka_offset`, `kafka_appended`, `kafka_key`, `event_id`, `event_type`, `driver_id`, `pickup_zone`, `dropoff_zone`, `event_time_ms`, `ingest_time_ms`, `fare_cents`, `distance_m`,
  COUNT(*) OVER (PARTITION BY `event_id` ORDER BY `arrival` ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS `copy`
FROM (
  SELECT `kafka_partition`, `kafka_offset`, `kafka_appended`, `kafka_key`, `event_id`, `event_type`, `driver_id`, `pickup_zone`, `dropoff_zone`, `event_time_ms`, `ingest_time_ms`, `fare_cents`, `distance_m`, PROCTIME() AS `arrival`
  FROM `trip_events_fields`
  WHERE `reason` IS NULL
);

CREATE TEMPORARY VIEW `trip_events_fates` AS
SELECT `kafka_partition`, `kafka_offset`, `kafka_appended`, `kafka_key`, `event_id`, `event_type`, `driver_id`, `pickup_zone`, `dropoff_zone`, `event_time_ms`, `ingest_time_ms`, `fare_cents`, `distance_m`,
  CASE WHEN `copy` > 1 THEN 'duplicate' WHEN `event_time_ms` - `ingest_time_ms` > 60000 OR `ingest_time_ms` - (EXTRACT(EPOCH FROM `kafka_appended`) * 1000 + EXTRACT(MILLISECOND FROM `kafka_appended`)) > 60000 THEN 'future' WHEN `ingest_time_ms` - `event_time_ms` > 600000 THEN 'late' ELSE 'used' END AS `fate`
FROM `trip_events_counted`;

CREATE TEMPORARY VIEW `trip_events_used` AS
SELECT `kafka_partition`, `kafka_offset`, `kafka_appended`, `kafka_key`, `event_id`, `event_type`, `driver_id`, `pickup_zone`, `dropoff_zone`, `event_time_ms`, `ingest_time_ms`, `fare_cents`, `distance_m`
FROM `trip_events_fates`
WHERE `fate` = 'used';

CREATE TEMPORARY VIEW `driver_trip_events_60000_rows` AS
SELECT `driver_id` AS `group_key`, `ingest_time_ms` AS `ingested_ms`, `kafka_appended`, ((`event_time_ms` - MOD(MOD(`event_time_ms`, 60000) + 60000, 60000)) / 60000) AS `tile`, `event_type`
FROM `trip_events_used`
WHERE `driver_id` IS NOT NULL;

CREATE TEMPORARY VIEW `driver_trip_events_900000_rows` AS
SELECT `driver_id` AS `group_key`, `ingest_time_ms` AS `ingested_ms`, `kafka_appended`, ((`event_time_ms` - MOD(MOD(`event_time_ms`, 900000) + 900000, 900000)) / 900000) AS `tile`, `event_type`, `fare_cents`, `distance_m`
FROM `trip_events_used`
WHERE `driver_id` IS NOT NULL;

CREATE TEMPORARY VIEW `zone_trip_events_60000_pickup_zone_rows` AS
SELECT `pickup_zone` AS `group_key`, `ingest_time_ms` AS `ingested_ms`, `kafka_appended`, ((`event_time_ms` - MOD(MOD(`event_time_ms`, 60000) + 60000, 60000)) / 60000) AS `tile`, `event_type`
FROM `trip_events_used`
WHERE `pickup_zone` IS NOT NULL;

CREATE TEMPORARY VIEW `zone_trip_events_300000_pickup_zone_rows` AS
SELECT `pickup_zone` AS `group_key`, `ingest_time_ms` AS `ingested_ms`, `kafka_appended`, ((`event_time_ms` - MOD(MOD(`event_time_ms`, 300000) + 300000, 300000)) / 300000) AS `tile`, `event_type`, `fare_cents`
FROM `trip_events_used`
WHERE `pickup_zone` IS NOT NULL;

CREATE TEMPORARY VIEW `driver_events_decoded` AS
SELECT `kafka_partition`, `kafka_offset`, `kafka_appended`, `kafka_key`, `kafka_value`, decode_driver_events(`kafka_value`) AS `record`
FROM `driver_events`;

CREATE TEMPORARY VIEW `driver_events_fields` AS
SELECT `kafka_partition`, `kafka_offset`, `kafka_appended`, `kafka_key`, `kafka_value`,
  `record`.`reason` AS `reason`,
  `record`.`path` AS `path`,
  `record`.`event_id` AS `event_id`,
  `record`.`driver_id` AS `driver_id`,
  `record`.`status` AS `status`,
  `record`.`zone` AS `zone`,
  `record`.`event_time_ms` AS `event_time_ms`,
  `record`.`ingest_time_ms` AS `ingest_time_ms`
FROM `driver_events_decoded`;

CREATE TEMPORARY VIEW `driver_events_counted` AS
SELECT `kafka_partition`, `kafka_offset`, `kafka_appended`, `kafka_key`, `event_id`, `driver_id`, `status`, `zone`, `event_time_ms`, `ingest_time_ms`,
  COUNT(*) OVER (PARTITION BY `event_id` ORDER BY `arrival` ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS `copy`
FROM (
  SELECT `kafka_partition`, `kafka_offset`, `kafka_appended`, `kafka_key`, `event_id`, `driver_id`, `status`, `zone`, `event_time_ms`, `ingest_time_ms`, PROCTIME() AS `arrival`
  FROM `driver_events_fields`
  WHERE `reason` IS NULL
);

CREATE TEMPORARY VIEW `driver_events_fates` AS
SELECT `kafka_partition`, `kafka_offset`, `kafka_appended`, `kafka_key`, `event_id`, `driver_id`, `status`, `zone`, `event_time_ms`, `ingest_time_ms`,
  CASE WHEN `copy` > 1 THEN 'duplicate' WHEN `event_time_ms` - `ingest_time_ms` > 60000 OR `ingest_time_ms` - (EXTRACT(EPOCH FROM `kafka_appended`) * 1000 + EXTRACT(MILLISECOND FROM `kafka_appended`)) > 60000 THEN 'future' WHEN `ingest_time_ms` - `event_time_ms` > 600000 THEN 'late' ELSE 'used' END AS `fate`
FROM `driver_events_counted`;

CREATE TEMPORARY VIEW `driver_events_used` AS
SELECT `kafka_partition`, `kafka_offset`, `kafka_appended`, `kafka_key`, `event_id`, `driver_id`, `status`, `zone`, `event_time_ms`, `ingest_time_ms`
FROM `driver_events_fates`
WHERE `fate` = 'used';

BEGIN STATEMENT SET;

INSERT INTO `dead_letters`
SELECT dead_letter('trip_events', `kafka_partition`, `kafka_offset`, `reason`, `path`, `kafka_value`)
FROM `trip_events_fields`
WHERE `reason` IS NOT NULL;

INSERT INTO `ledger`
SELECT ledger_entry('trip_events', `kafka_partition`, `kafka_offset`, `fate`, `kafka_key`, `event_id`,
  `ingest_time_ms` - `event_time_ms`,
  CONCAT_WS(' ',
    'driver.trip_events.60000[' || CAST(`driver_id` AS STRING) || ']@' || CAST(((`event_time_ms` - MOD(MOD(`event_time_ms`, 60000) + 60000, 60000)) / 60000) AS STRING),
    'driver.trip_events.900000[' || CAST(`driver_id` AS STRING) || ']@' || CAST(((`event_time_ms` - MOD(MOD(`event_time_ms`, 900000) + 900000, 900000)) / 900000) AS STRING),
    'zone.trip_events.60000.pickup_zone[' || CAST(`pickup_zone` AS STRING) || ']@' || CAST(((`event_time_ms` - MOD(MOD(`event_time_ms`, 60000) + 60000, 60000)) / 60000) AS STRING),
    'zone.trip_events.300000.pickup_zone[' || CAST(`pickup_zone` AS STRING) || ']@' || CAST(((`event_time_ms` - MOD(MOD(`event_time_ms`, 300000) + 300000, 300000)) / 300000) AS STRING),
    'driver.trip_events.last[' || CAST(`driver_id` AS STRING) || ']'))
FROM `trip_events_fates`
WHERE `fate` <> 'used';

INSERT INTO `written_driver_trip_events_60000`
SELECT write_driver_trip_events_60000(`group_key`, `tile`, `num_events`, `applied_through_ms`, EXTRACT(EPOCH FROM `kafka_appended`) * 1000 + EXTRACT(MILLISECOND FROM `kafka_appended`), `p0`, `p1`, `p2`)
FROM (
  SELECT /*+ STATE_TTL('driver_trip_events_60000_rows' = '87060000 ms') */ `group_key`, `tile`,
    COUNT(*) AS `num_events`,
    MAX(`ingested_ms`) AS `applied_through_ms`,
    MAX(`kafka_appended`) AS `kafka_appended`,
    COUNT(*) FILTER (WHERE (`event_type` = 'completed')) AS `p0`,
    COUNT(*) FILTER (WHERE ((`event_type` = 'declined') OR (`event_type` = 'timed_out'))) AS `p1`,
    COUNT(*) FILTER (WHERE (`event_type` = 'offered')) AS `p2`
  FROM `driver_trip_events_60000_rows`
  GROUP BY `group_key`, `tile`
);

INSERT INTO `written_driver_trip_events_900000`
SELECT write_driver_trip_events_900000(`group_key`, `tile`, `num_events`, `applied_through_ms`, EXTRACT(EPOCH FROM `kafka_appended`) * 1000 + EXTRACT(MILLISECOND FROM `kafka_appended`), `p0`, `p1`, `p2`, `p3`, `p4`, `p5`)
FROM (
  SELECT /*+ STATE_TTL('driver_trip_events_900000_rows' = '87900000 ms') */ `group_key`, `tile`,
    COUNT(*) AS `num_events`,
    MAX(`ingested_ms`) AS `applied_through_ms`,
    MAX(`kafka_appended`) AS `kafka_appended`,
    COUNT(*) FILTER (WHERE (`event_type` = 'accepted')) AS `p0`,
    COUNT(*) FILTER (WHERE (`event_type` = 'offered')) AS `p1`,
    COUNT(`distance_m`) FILTER (WHERE (`event_type` = 'completed')) AS `p2`,
    COALESCE(MAX(CAST(`fare_cents` AS BIGINT)) FILTER (WHERE (`event_type` = 'completed')), -9223372036854775807 - 1) AS `p3`,
    COALESCE(SUM(CAST(`distance_m` AS BIGINT)) FILTER (WHERE (`event_type` = 'completed')), CAST(0 AS BIGINT)) AS `p4`,
    COALESCE(SUM(CAST(`fare_cents` AS BIGINT)) FILTER (WHERE (`event_type` = 'completed')), CAST(0 AS BIGINT)) AS `p5`
  FROM `driver_trip_events_900000_rows`
  GROUP BY `group_key`, `tile`
);

INSERT INTO `written_zone_trip_events_60000_pickup_zone`
SELECT write_zone_trip_events_60000_pickup_zone(`group_key`, `tile`, `num_events`, `applied_through_ms`, EXTRACT(EPOCH FROM `kafka_appended`) * 1000 + EXTRACT(MILLISECOND FROM `kafka_appended`), `p0`, `p1`)
FROM (
  SELECT /*+ STATE_TTL('zone_trip_events_60000_pickup_zone_rows' = '87060000 ms') */ `group_key`, `tile`,
    COUNT(*) AS `num_events`,
    MAX(`ingested_ms`) AS `applied_through_ms`,
    MAX(`kafka_appended`) AS `kafka_appended`,
    COUNT(*) FILTER (WHERE (`event_type` = 'cancelled')) AS `p0`,
    COUNT(*) FILTER (WHERE (`event_type` = 'requested')) AS `p1`
  FROM `zone_trip_events_60000_pickup_zone_rows`
  GROUP BY `group_key`, `tile`
);

INSERT INTO `written_zone_trip_events_300000_pickup_zone`
SELECT write_zone_trip_events_300000_pickup_zone(`group_key`, `tile`, `num_events`, `applied_through_ms`, EXTRACT(EPOCH FROM `kafka_appended`) * 1000 + EXTRACT(MILLISECOND FROM `kafka_appended`), `p0`, `p1`, `p2`, `p3`)
FROM (
  SELECT /*+ STATE_TTL('zone_trip_events_300000_pickup_zone_rows' = '87300000 ms') */ `group_key`, `tile`,
    COUNT(*) AS `num_events`,
    MAX(`ingested_ms`) AS `applied_through_ms`,
    MAX(`kafka_appended`) AS `kafka_appended`,
    COUNT(*) FILTER (WHERE (`event_type` = 'completed')) AS `p0`,
    COUNT(`fare_cents`) FILTER (WHERE (`event_type` = 'completed')) AS `p1`,
    COALESCE(MIN(CAST(`fare_cents` AS BIGINT)) FILTER (WHERE (`event_type` = 'completed')), 9223372036854775807) AS `p2`,
    COALESCE(SUM(CAST(`fare_cents` AS BIGINT)) FILTER (WHERE (`event_type` = 'completed')), CAST(0 AS BIGINT)) AS `p3`
  FROM `zone_trip_events_300000_pickup_zone_rows`
  GROUP BY `group_key`, `tile`
);

INSERT INTO `written_driver_trip_events_last`
SELECT write_driver_trip_events_last(`driver_id`, `event_time_ms`, `event_id`, `kafka_partition`, `kafka_offset`,
  `ingest_time_ms`, EXTRACT(EPOCH FROM `kafka_appended`) * 1000 + EXTRACT(MILLISECOND FROM `kafka_appended`),
  CASE WHEN (`event_type` = 'completed') THEN CAST(CAST(`dropoff_zone` AS BIGINT) AS STRING) END)
FROM `trip_events_used`
WHERE `driver_id` IS NOT NULL;

INSERT INTO `dead_letters`
SELECT dead_letter('driver_events', `kafka_partition`, `kafka_offset`, `reason`, `path`, `kafka_value`)
FROM `driver_events_fields`
WHERE `reason` IS NOT NULL;

INSERT INTO `ledger`
SELECT ledger_entry('driver_events', `kafka_partition`, `kafka_offset`, `fate`, `kafka_key`, `event_id`,
  `ingest_time_ms` - `event_time_ms`,
  CONCAT_WS(' ',
    'driver.driver_events.last[' || CAST(`driver_id` AS STRING) || ']'))
FROM `driver_events_fates`
WHERE `fate` <> 'used';

INSERT INTO `written_driver_driver_events_last`
SELECT write_driver_driver_events_last(`driver_id`, `event_time_ms`, `event_id`, `kafka_partition`, `kafka_offset`,
  `ingest_time_ms`, EXTRACT(EPOCH FROM `kafka_appended`) * 1000 + EXTRACT(MILLISECOND FROM `kafka_appended`),
  CAST(`status` AS STRING),
  CAST(`zone` AS BIGINT))
FROM `driver_events_used`
WHERE `driver_id` IS NOT NULL;

END;
