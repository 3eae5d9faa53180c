"""A catalogue that has something of everything, for tests that edit it: shared groups, several hops, keys of other columns and of
several, defaults, expressions of expressions, conditions with spaces in their texts, every aggregate.
"""

from __future__ import annotations

from collections.abc import Mapping

RICH: Mapping[str, str] = {
    "entities.yaml": """
driver: {join_key: driver_id, type: string, description: One driver.}
zone: {join_key: zone, type: int}
rider: {join_key: rider_id, type: string}
unused: {join_key: unused_id, type: string}
lane: {keys: {lane_zone: int, lane_rider: string}}
""".lstrip(),
    "sources.yaml": """
rides:
  topic: rides
  event_time: at_ms
  ingest_time: seen_ms
  event_id: id
  disorder: 10m
  future: 2m
  dedup: {by: id, horizon: 1h}
  schema:
    id: string
    other_id: string
    kind: string
    driver_id: string?
    rider_id: string
    from_zone: int
    to_zone: int?
    at_ms: int
    seen_ms: int
    other_ms: int
    cents: int?
    km: double?
    tip: int?
    spare: int
pings:
  topic: pings
  event_time: at_ms
  ingest_time: seen_ms
  event_id: id
  disorder: 5m
  future: 1m
  schema:
    id: string
    driver_id: string
    zone: int
    speed: double
    word: string
    at_ms: int
    seen_ms: int
""".lstrip(),
    "views/driver_rides.yaml": """
view: driver_rides
entity: driver
source: rides
owner: supply
description: Rides of a driver.
max_age: 8h
freshness_slo: {p99: 1s}
features:
  n_10m:     {aggregate: count, window: 10m, hop: 1m, unit: trips}
  n_1h:      {aggregate: count, where: "kind == 'done'", window: 1h, hop: 1m, unit: trips}
  cents_1h:  {aggregate: sum, of: cents, where: "kind == 'done'", window: 1h, hop: 1m, unit: cents}
  avg_c_1h:  {aggregate: avg, of: cents, where: "kind == 'done'", window: 1h, hop: 1m}
  tips_4h:   {aggregate: sum, of: cents, window: 4h, hop: 15m, default: 7}
  max_km_4h: {aggregate: max, of: km, where: "kind == 'done' || kind == 'a  b'", window: 4h, hop: 15m}
  min_km_2h: {aggregate: min, of: km, window: 2h, hop: 15m, default: 1.5}
  last_zone: {aggregate: last, of: to_zone, where: "kind == 'done'"}
  share:     {expr: "n_10m > 0 ? double(n_1h) / double(n_10m) : null", default: 0.25}
  rich:      {expr: "share > 0.5 && cents_1h > 100"}
  twice:     {expr: "2 * n_1h", unit: trips}
""".lstrip(),
    "views/driver_pings.yaml": """
# Where a driver is.
view: driver_pings
entity: driver
source: pings
max_age: 2h
features:
  word:      {aggregate: last, of: word, default: none}
  zone:      {aggregate: last, of: zone}
  speed_5m:  {aggregate: avg, of: speed, window: 5m, hop: 1m}
  fast_5m:   {aggregate: count, where: "speed > 12.0", window: 5m, hop: 1m}
""".lstrip(),
    "views/zone_rides.yaml": """
view: zone_rides
entity: zone
source: rides
key: {zone: from_zone}
max_age: 1d
features:
  out_30m:   {aggregate: count, window: 30m, hop: 5m}
  done_1h:   {aggregate: count, where: "kind == 'done'", window: 1h, hop: 5m}
  km_1h:     {aggregate: sum, of: km, window: 1h, hop: 5m}
""".lstrip(),
    "views/zone_more.yaml": """
view: zone_more
entity: zone
source: rides
key: {zone: from_zone}
max_age: 1d
features:
  done_2h:   {aggregate: count, where: "kind == 'done'", window: 2h, hop: 5m}
  km_30m:    {aggregate: sum, of: km, window: 30m, hop: 5m}
  far:       {expr: "km_30m > 10.0"}
""".lstrip(),
    "views/driver_spread.yaml": """
view: driver_spread
entity: driver
source: rides
max_age: 1d
features:
  dev_1h:    {aggregate: stddev, of: cents, window: 1h, hop: 1m}
  dev_km:    {aggregate: stddev, of: km, resolution: 0.25, window: 4h, hop: 15m}
  p90_2h:    {aggregate: quantile, q: 0.9, of: cents, window: 2h, hop: 15m}
  p50_1h:    {aggregate: quantile, q: 0.5, of: cents, window: 1h, hop: 15m, default: 0}
  heat_1h:   {aggregate: decayed_sum, of: cents, window: 1h, hop: 1m, half_life: 10m}
  first_to:  {aggregate: first, of: to_zone}
""".lstrip(),
    "views/lane_rides.yaml": """
view: lane_rides
entity: lane
source: rides
key: {lane_zone: from_zone, lane_rider: rider_id}
max_age: 1d
features:
  rides_4h:  {aggregate: count, window: 4h, hop: 15m}
  last_km:   {aggregate: last, of: km}
""".lstrip(),
    "views/rider_rides.yaml": """
view: rider_rides
entity: rider
source: rides
max_age: 1d
features:
  rides_1d:  {aggregate: count, window: 1d, hop: 1h}
""".lstrip(),
}
