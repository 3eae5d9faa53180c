-- small-features-g1

SET 'pipeline.name' = 'small-features-g1';
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
SET 'table.exec.state.ttl' = '7200000 ms';
SET 'python.execution-mode' = 'process';
SET 'python.fn-execution.bundle.size' = '10000';
SET 'python.fn-execution.arrow.batch.size' = '10000';
SET 'python.fn-execution.bundle.time' = '50';
SET 'execution.checkpointing.timeout' = '10 min';
SET 'execution.checkpointing.tolerable-failed-checkpoints' = '1000000';

-- Python functions, registered by pipelines/jobs/features.py:
--   decode_trip_events(BYTES) -> ROW<reason STRING, path STRING, event_id STRING, product STRING, pickup_zone BIGINT, event_time_ms BIGINT, ingest_time_ms BIGINT, fare_cents BIGINT>
--   decode_driver_events(BYTES) -> ROW<reason STRING, path STRING, event_id STRING, driver_id STRING, status STRING, zone BIGINT, event_time_ms BIGINT, ingest_time_ms BIGINT>
--   dead_letter(topic, partition, offset, reason, path, BYTES) -> BYTES
--   ledger_entry(topic, partition, offset, fate, key, event_id, lateness_ms, effect) -> BYTES
--   write_zone_trip_events_300000_pickup_zone(…) -> TINYINT writes zone.trip_events.300000.pickup_zone, generation 1
--   write_zone_trip_events_300000_q00b72771_pickup_zone(…) -> TINYINT writes zone.trip_events.300000.q00b72771.pickup_zone, generation 1
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
  'sink.transactional-id-prefix' = 'small-features-g1-dead_letters'
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
  'sink.transactional-id-prefix' = 'small-features-g1-ledger'
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

CREATE TEMPORARY TABLE `written_zone_trip_events_300000_pickup_zone` (
  `status` TINYINT
) WITH ('connector' = 'blackhole');

CREATE TEMPORARY TABLE `written_zone_trip_events_300000_q00b72771_pickup_zone` (
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
  `record`.`product` AS `product`,
  `record`.`pickup_zone` AS `pickup_zone`,
  `record`.`event_time_ms` AS `event_time_ms`,
  `record`.`ingest_time_ms` AS `ingest_time_ms`,
  `record`.`fare_cents` AS `fare_cents`
FROM `trip_events_decoded`;

CREATE TEMPORARY VIEW `trip_events_counted` AS
SELECT `kafka_partition`, `kafka_offset`, `kafka_appended`, `kafka_key`, `event_id`, `product`, `pickup_zone`, `event_time_ms`, `ingest_time_ms`, `fare_cents`,
  COUNT(*) OVER (PARTITION BY `event_id` ORDER BY `arrival` ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS `copy`
FROM (
  SELECT `kafka_partition`, `kafka_offset`, `kafka_appended`, `kafka_key`, `event_id`, `product`, `pickup_zone`, `event_time_ms`, `ingest_time_ms`, `fare_cents`, PROCTIME() AS `arrival`
  FROM `trip_events_fields`
  WHERE `reason` IS NULL
);

CREATE TEMPORARY VIEW `trip_events_fates` AS
SELECT `kafka_partition`, `kafka_offset`, `kafka_appended`, `kafka_key`, `event_id`, `product`, `pickup_zone`, `event_time_ms`, `ingest_time_ms`, `fare_cents`,
  CASE WHEN `copy` > 1 THEN 'duplicate' WHEN `event_time_ms` - `ingest_time_ms` > 30000 OR `ingest_time_ms` - (EXTRACT(EPOCH FROM `kafka_appended`) * 1000 + EXTRACT(MILLISECOND FROM `kafka_appended`)) > 30000 THEN 'future' WHEN `ingest_time_ms` - `event_time_ms` > 300000 THEN 'late' ELSE 'used' END AS `fate`
FROM `trip_events_counted`;

CREATE TEMPORARY VIEW `trip_events_used` AS
SELECT `kafka_partition`, `kafka_offset`, `kafka_appended`, `kafka_key`, `event_id`, `product`, `pickup_zone`, `event_time_ms`, `ingest_time_ms`, `fare_cents`
FROM `trip_events_fates`
WHERE `fate` = 'used';

CREATE TEMPORARY VIEW `zone_trip_events_300000_pickup_zone_rows` AS
SELECT `pickup_zone` AS `group_key`, `ingest_time_ms` AS `ingested_ms`, `kafka_appended`, ((`event_time_ms` - MOD(MOD(`event_time_ms`, 300000) + 300000, 300000)) / 300000) AS `tile`, `product`, `fare_cents`, `steps_0`
FROM (
  SELECT *, CASE WHEN `fare_cents` > -4398046511104 AND `fare_cents` < 4398046511104 THEN `fare_cents` END AS `steps_0`
  FROM `trip_events_used`
  WHERE `pickup_zone` IS NOT NULL
);

CREATE TEMPORARY VIEW `zone_trip_events_300000_q00b72771_pickup_zone_rows` AS
SELECT `pickup_zone` AS `group_key`, `ingest_time_ms` AS `ingested_ms`, `kafka_appended`, ((`event_time_ms` - MOD(MOD(`event_time_ms`, 300000) + 300000, 300000)) / 300000) * 1248 + CASE WHEN `steps_0` IS NULL THEN 0 ELSE 624 + (CASE WHEN `steps_0` < 0 THEN -1 ELSE 1 END) * (CASE WHEN ABS(`steps_0`) < 32 THEN ABS(`steps_0`) WHEN ABS(`steps_0`) < 64 THEN 16 + ABS(`steps_0`) / 2 WHEN ABS(`steps_0`) < 128 THEN 32 + ABS(`steps_0`) / 4 WHEN ABS(`steps_0`) < 256 THEN 48 + ABS(`steps_0`) / 8 WHEN ABS(`steps_0`) < 512 THEN 64 + ABS(`steps_0`) / 16 WHEN ABS(`steps_0`) < 1024 THEN 80 + ABS(`steps_0`) / 32 WHEN ABS(`steps_0`) < 2048 THEN 96 + ABS(`steps_0`) / 64 WHEN ABS(`steps_0`) < 4096 THEN 112 + ABS(`steps_0`) / 128 WHEN ABS(`steps_0`) < 8192 THEN 128 + ABS(`steps_0`) / 256 WHEN ABS(`steps_0`) < 16384 THEN 144 + ABS(`steps_0`) / 512 WHEN ABS(`steps_0`) < 32768 THEN 160 + ABS(`steps_0`) / 1024 WHEN ABS(`steps_0`) < 65536 THEN 176 + ABS(`steps_0`) / 2048 WHEN ABS(`steps_0`) < 131072 THEN 192 + ABS(`steps_0`) / 4096 WHEN ABS(`steps_0`) < 262144 THEN 208 + ABS(`steps_0`) / 8192 WHEN ABS(`steps_0`) < 524288 THEN 224 + ABS(`steps_0`) / 16384 WHEN ABS(`steps_0`) < 1048576 THEN 240 + ABS(`steps_0`) / 32768 WHEN ABS(`steps_0`) < 2097152 THEN 256 + ABS(`steps_0`) / 65536 WHEN ABS(`steps_0`) < 4194304 THEN 272 + ABS(`steps_0`) / 131072 WHEN ABS(`steps_0`) < 8388608 THEN 288 + ABS(`steps_0`) / 262144 WHEN ABS(`steps_0`) < 16777216 THEN 304 + ABS(`steps_0`) / 524288 WHEN ABS(`steps_0`) < 33554432 THEN 320 + ABS(`steps_0`) / 1048576 WHEN ABS(`steps_0`) < 67108864 THEN 336 + ABS(`steps_0`) / 2097152 WHEN ABS(`steps_0`) < 134217728 THEN 352 + ABS(`steps_0`) / 4194304 WHEN ABS(`steps_0`) < 268435456 THEN 368 + ABS(`steps_0`) / 8388608 WHEN ABS(`steps_0`) < 536870912 THEN 384 + ABS(`steps_0`) / 16777216 WHEN ABS(`steps_0`) < 1073741824 THEN 400 + ABS(`steps_0`) / 33554432 WHEN ABS(`steps_0`) < 2147483648 THEN 416 + ABS(`steps_0`) / 67108864 WHEN ABS(`steps_0`) < 4294967296 THEN 432 + ABS(`steps_0`) / 134217728 WHEN ABS(`steps_0`) < 8589934592 THEN 448 + ABS(`steps_0`) / 268435456 WHEN ABS(`steps_0`) < 17179869184 THEN 464 + ABS(`steps_0`) / 536870912 WHEN ABS(`steps_0`) < 34359738368 THEN 480 + ABS(`steps_0`) / 1073741824 WHEN ABS(`steps_0`) < 68719476736 THEN 496 + ABS(`steps_0`) / 2147483648 WHEN ABS(`steps_0`) < 137438953472 THEN 512 + ABS(`steps_0`) / 4294967296 WHEN ABS(`steps_0`) < 274877906944 THEN 528 + ABS(`steps_0`) / 8589934592 WHEN ABS(`steps_0`) < 549755813888 THEN 544 + ABS(`steps_0`) / 17179869184 WHEN ABS(`steps_0`) < 1099511627776 THEN 560 + ABS(`steps_0`) / 34359738368 WHEN ABS(`steps_0`) < 2199023255552 THEN 576 + ABS(`steps_0`) / 68719476736 ELSE 592 + ABS(`steps_0`) / 137438953472 END) END AS `tile`
FROM (
  SELECT *, CASE WHEN (`product` = 'it''s pool') THEN CASE WHEN `fare_cents` > -4398046511104 AND `fare_cents` < 4398046511104 THEN `fare_cents` END END AS `steps_0`
  FROM `trip_events_used`
  WHERE `pickup_zone` IS NOT NULL
);

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

CREATE TEMPORARY VIEW `driver_events_fates` AS
SELECT `kafka_partition`, `kafka_offset`, `kafka_appended`, `kafka_key`, `event_id`, `driver_id`, `status`, `zone`, `event_time_ms`, `ingest_time_ms`,
  CASE WHEN `event_time_ms` - `ingest_time_ms` > 60000 OR `ingest_time_ms` - (EXTRACT(EPOCH FROM `kafka_appended`) * 1000 + EXTRACT(MILLISECOND FROM `kafka_appended`)) > 60000 THEN 'future' WHEN `ingest_time_ms` - `event_time_ms` > 600000 THEN 'late' ELSE 'used' END AS `fate`
FROM `driver_events_fields`
WHERE `reason` IS NULL;

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
    'zone.trip_events.300000.pickup_zone[' || CAST(`pickup_zone` AS STRING) || ']@' || CAST(((`event_time_ms` - MOD(MOD(`event_time_ms`, 300000) + 300000, 300000)) / 300000) AS STRING),
    'zone.trip_events.300000.q00b72771.pickup_zone[' || CAST(`pickup_zone` AS STRING) || ']@' || CAST(((`event_time_ms` - MOD(MOD(`event_time_ms`, 300000) + 300000, 300000)) / 300000) AS STRING)))
FROM `trip_events_fates`
WHERE `fate` <> 'used';

INSERT INTO `written_zone_trip_events_300000_pickup_zone`
SELECT write_zone_trip_events_300000_pickup_zone(`group_key`, `tile`, `num_events`, `applied_through_ms`, EXTRACT(EPOCH FROM `kafka_appended`) * 1000 + EXTRACT(MILLISECOND FROM `kafka_appended`), `p0`, `p1`, `p2`, `p3`, `p4`, `p5`, `p6`, `p7`, `p8`, `p9`)
FROM (
  SELECT /*+ STATE_TTL('zone_trip_events_300000_pickup_zone_rows' = '87000000 ms') */ `group_key`, `tile`,
    COUNT(*) AS `num_events`,
    MAX(`ingested_ms`) AS `applied_through_ms`,
    MAX(`kafka_appended`) AS `kafka_appended`,
    COUNT(*) AS `p0`,
    COUNT(`fare_cents`) AS `p1`,
    MAX(CASE WHEN (CAST(COALESCE(`fare_cents`, CAST(0 AS BIGINT)) AS DOUBLE) / 100.0E0) >= -1.7976931348623157E308 AND (CAST(COALESCE(`fare_cents`, CAST(0 AS BIGINT)) AS DOUBLE) / 100.0E0) <= 1.7976931348623157E308 THEN (CAST(COALESCE(`fare_cents`, CAST(0 AS BIGINT)) AS DOUBLE) / 100.0E0) END) AS `p2`,
    COALESCE(MIN(CAST(`fare_cents` AS BIGINT)), 9223372036854775807) AS `p3`,
    COALESCE(SUM(CAST(MOD(MOD(`steps_0`, 2097152) + 2097152, 2097152) AS BIGINT) * CAST(MOD(MOD(`steps_0`, 2097152) + 2097152, 2097152) AS BIGINT)), CAST(0 AS BIGINT)) AS `p4`,
    COALESCE(SUM(CAST(MOD(MOD(`steps_0`, 2097152) + 2097152, 2097152) AS BIGINT) * ((`steps_0` - CAST(MOD(MOD(`steps_0`, 2097152) + 2097152, 2097152) AS BIGINT)) / 2097152)), CAST(0 AS BIGINT)) AS `p5`,
    COALESCE(SUM(((`steps_0` - CAST(MOD(MOD(`steps_0`, 2097152) + 2097152, 2097152) AS BIGINT)) / 2097152) * ((`steps_0` - CAST(MOD(MOD(`steps_0`, 2097152) + 2097152, 2097152) AS BIGINT)) / 2097152)), CAST(0 AS BIGINT)) AS `p6`,
    COUNT(`steps_0`) AS `p7`,
    COALESCE(SUM(`steps_0`), CAST(0 AS BIGINT)) AS `p8`,
    COALESCE(SUM(CASE WHEN (CAST(COALESCE(`fare_cents`, CAST(0 AS BIGINT)) AS DOUBLE) / 100.0E0) >= -1.7976931348623157E308 AND (CAST(COALESCE(`fare_cents`, CAST(0 AS BIGINT)) AS DOUBLE) / 100.0E0) <= 1.7976931348623157E308 THEN (CAST(COALESCE(`fare_cents`, CAST(0 AS BIGINT)) AS DOUBLE) / 100.0E0) END) FILTER (WHERE (`product` = 'it''s pool')), 0.0E0) AS `p9`
  FROM `zone_trip_events_300000_pickup_zone_rows`
  GROUP BY `group_key`, `tile`
);

INSERT INTO `written_zone_trip_events_300000_q00b72771_pickup_zone`
SELECT write_zone_trip_events_300000_q00b72771_pickup_zone(`group_key`, `tile`, `num_events`, `applied_through_ms`, EXTRACT(EPOCH FROM `kafka_appended`) * 1000 + EXTRACT(MILLISECOND FROM `kafka_appended`))
FROM (
  SELECT /*+ STATE_TTL('zone_trip_events_300000_q00b72771_pickup_zone_rows' = '87000000 ms') */ `group_key`, `tile`,
    COUNT(*) AS `num_events`,
    MAX(`ingested_ms`) AS `applied_through_ms`,
    MAX(`kafka_appended`) AS `kafka_appended`
  FROM `zone_trip_events_300000_q00b72771_pickup_zone_rows`
  GROUP BY `group_key`, `tile`
);

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
  CAST(`status` AS STRING),
  CASE WHEN (`status` = 'idle') THEN CAST(CAST(`zone` AS BIGINT) AS STRING) END)
FROM `driver_events_used`
WHERE `driver_id` IS NOT NULL;

END;
