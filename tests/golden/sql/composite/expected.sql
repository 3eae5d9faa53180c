-- composite-features-g1

SET 'pipeline.name' = 'composite-features-g1';
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
--   decode_trip_events(BYTES) -> ROW<reason STRING, path STRING, event_id STRING, event_type STRING, product STRING, pickup_zone BIGINT, event_time_ms BIGINT, ingest_time_ms BIGINT, fare_cents BIGINT>
--   dead_letter(topic, partition, offset, reason, path, BYTES) -> BYTES
--   ledger_entry(topic, partition, offset, fate, key, event_id, lateness_ms, effect) -> BYTES
--   write_zone_product_trip_events_300000_pickup_zone_product(…) -> TINYINT writes zone_product.trip_events.300000.pickup_zone.product, generation 1
--   write_zone_product_trip_events_last_pickup_zone_product(…) -> TINYINT writes zone_product.trip_events.last.pickup_zone.product, generation 1

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
  'sink.transactional-id-prefix' = 'composite-features-g1-dead_letters'
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
  'sink.transactional-id-prefix' = 'composite-features-g1-ledger'
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

CREATE TEMPORARY TABLE `written_zone_product_trip_events_300000_pickup_zone_product` (
  `status` TINYINT
) WITH ('connector' = 'blackhole');

CREATE TEMPORARY TABLE `written_zone_product_trip_events_last_pickup_zone_product` (
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
  `record`.`product` AS `product`,
  `record`.`pickup_zone` AS `pickup_zone`,
  `record`.`event_time_ms` AS `event_time_ms`,
  `record`.`ingest_time_ms` AS `ingest_time_ms`,
  `record`.`fare_cents` AS `fare_cents`
FROM `trip_events_decoded`;

CREATE TEMPORARY VIEW `trip_events_counted` AS
SELECT `kafka_partition`, `kafka_offset`, `kafka_appended`, `kafka_key`, `event_id`, `event_type`, `product`, `pickup_zone`, `event_time_ms`, `ingest_time_ms`, `fare_cents`,
  COUNT(*) OVER (PARTITION BY `event_id` ORDER BY `arrival` ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS `copy`
FROM (
  SELECT `kafka_partition`, `kafka_offset`, `kafka_appended`, `kafka_key`, `event_id`, `event_type`, `product`, `pickup_zone`, `event_time_ms`, `ingest_time_ms`, `fare_cents`, PROCTIME() AS `arrival`
  FROM `trip_events_fields`
  WHERE `reason` IS NULL
);

CREATE TEMPORARY VIEW `trip_events_fates` AS
SELECT `kafka_partition`, `kafka_offset`, `kafka_appended`, `kafka_key`, `event_id`, `event_type`, `product`, `pickup_zone`, `event_time_ms`, `ingest_time_ms`, `fare_cents`,
  CASE WHEN `copy` > 1 THEN 'duplicate' WHEN `event_time_ms` - `ingest_time_ms` > 30000 OR `ingest_time_ms` - (EXTRACT(EPOCH FROM `kafka_appended`) * 1000 + EXTRACT(MILLISECOND FROM `kafka_appended`)) > 30000 THEN 'future' WHEN `ingest_time_ms` - `event_time_ms` > 300000 THEN 'late' ELSE 'used' END AS `fate`
FROM `trip_events_counted`;

CREATE TEMPORARY VIEW `trip_events_used` AS
SELECT `kafka_partition`, `kafka_offset`, `kafka_appended`, `kafka_key`, `event_id`, `event_type`, `product`, `pickup_zone`, `event_time_ms`, `ingest_time_ms`, `fare_cents`
FROM `trip_events_fates`
WHERE `fate` = 'used';

CREATE TEMPORARY VIEW `zone_product_trip_events_300000_pickup_zone_product_rows` AS
SELECT `pickup_zone` AS `group_key_0`, `product` AS `group_key_1`, `ingest_time_ms` AS `ingested_ms`, `kafka_appended`, ((`event_time_ms` - MOD(MOD(`event_time_ms`, 300000) + 300000, 300000)) / 300000) AS `tile`, `event_type`
FROM `trip_events_used`
WHERE `pickup_zone` BETWEEN -2147483648 AND 2147483647 AND `product` IS NOT NULL;

BEGIN STATEMENT SET;

INSERT INTO `dead_letters`
SELECT dead_letter('trip_events', `kafka_partition`, `kafka_offset`, `reason`, `path`, `kafka_value`)
FROM `trip_events_fields`
WHERE `reason` IS NOT NULL;

INSERT INTO `ledger`
SELECT ledger_entry('trip_events', `kafka_partition`, `kafka_offset`, `fate`, `kafka_key`, `event_id`,
  `ingest_time_ms` - `event_time_ms`,
  CONCAT_WS(' ',
    'zone_product.trip_events.300000.pickup_zone.product[' || CAST(`pickup_zone` AS STRING) || ',' || CAST(`product` AS STRING) || ']@' || CAST(((`event_time_ms` - MOD(MOD(`event_time_ms`, 300000) + 300000, 300000)) / 300000) AS STRING),
    'zone_product.trip_events.last.pickup_zone.product[' || CAST(`pickup_zone` AS STRING) || ',' || CAST(`product` AS STRING) || ']'))
FROM `trip_events_fates`
WHERE `fate` <> 'used';

INSERT INTO `written_zone_product_trip_events_300000_pickup_zone_product`
SELECT write_zone_product_trip_events_300000_pickup_zone_product(`group_key_0`, `group_key_1`, `tile`, `num_events`, `applied_through_ms`, EXTRACT(EPOCH FROM `kafka_appended`) * 1000 + EXTRACT(MILLISECOND FROM `kafka_appended`), `p0`)
FROM (
  SELECT /*+ STATE_TTL('zone_product_trip_events_300000_pickup_zone_product_rows' = '87000000 ms') */ `group_key_0`, `group_key_1`, `tile`,
    COUNT(*) AS `num_events`,
    MAX(`ingested_ms`) AS `applied_through_ms`,
    MAX(`kafka_appended`) AS `kafka_appended`,
    COUNT(*) FILTER (WHERE (`event_type` = 'completed')) AS `p0`
  FROM `zone_product_trip_events_300000_pickup_zone_product_rows`
  GROUP BY `group_key_0`, `group_key_1`, `tile`
);

INSERT INTO `written_zone_product_trip_events_last_pickup_zone_product`
SELECT write_zone_product_trip_events_last_pickup_zone_product(`pickup_zone`, `product`, `event_time_ms`, `event_id`, `kafka_partition`, `kafka_offset`,
  `ingest_time_ms`, EXTRACT(EPOCH FROM `kafka_appended`) * 1000 + EXTRACT(MILLISECOND FROM `kafka_appended`),
  CASE WHEN (`event_type` = 'completed') THEN CAST(CAST(`fare_cents` AS BIGINT) AS STRING) END)
FROM `trip_events_used`
WHERE `pickup_zone` BETWEEN -2147483648 AND 2147483647 AND `product` IS NOT NULL;

END;
