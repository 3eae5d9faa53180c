"""The joiner inside Flink: one order's state per key, event-time timers on ingest time. Wiring: `samples.py`; logic: `pipelines/joiner.py`.

Runs in thread mode only, inside the TaskManager's JVM: keyed state from a Python process of its own costs about 1 ms an event, fifty
times as much. Flink falls back to that in silence, so `open` refuses it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

from pyflink.common import Row, Types
from pyflink.datastream.functions import KeyedProcessFunction, RuntimeContext
from pyflink.datastream.state import ValueStateDescriptor

from features.records import (
    DEAD_LETTERS,
    DECISIONS,
    LEDGER,
    SAMPLES,
    DeadLetter,
    RecordError,
    Sample,
    TripEvent,
    decode,
    encode,
)
from pipelines.jobs.clock import CLOCK
from pipelines.joiner import Joiner, OrderState, Output, decode_state, encode_state
from pipelines.labels.spec import LabelSet

# In: which topic, the message's key, value and place. Out: which topic, key (samples only) and value.
INPUT_FIELDS: Final = ("topic", "order_key", "message", "kafka_partition", "kafka_offset")
OUTPUT_TYPE: Final = Types.ROW_NAMED(
    ["topic", "message_key", "message"], [Types.STRING(), Types.STRING(), Types.PRIMITIVE_ARRAY(Types.BYTE())]
)


class JoinSamples(KeyedProcessFunction):
    """Decisions and trip events, keyed by order -> messages of samples, dead_letters and ledger."""

    def __init__(self, labels: LabelSet) -> None:
        self._labels = labels
        self._joiner: Joiner
        self._state: Any
        self._counters: dict[str, Any] = {}

    def open(self, runtime_context: RuntimeContext) -> None:
        assert_thread_mode()
        self._joiner = Joiner(self._labels)
        # Text: in thread mode PyFlink 2.2 fails on an absent value of any array type, and pickles everything else.
        self._state = runtime_context.get_state(ValueStateDescriptor("order", Types.STRING()))
        self._metrics = runtime_context.get_metrics_group()

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        topic, order_key, message, partition, offset = value
        if topic == CLOCK:  # it has moved the clock by being read
            self._count("clock_message")
            return
        raw, key = bytes(message) if message is not None else b"", order_key or ""
        timers = ctx.timer_service()
        now_ms = timers.current_watermark()
        if topic == DECISIONS:
            state = self._load()
            out = self._joiner.on_decision(state, raw, partition=partition, offset=offset, now_ms=now_ms, key=key)
        else:
            event = self._outcome(raw)
            if event is None:
                return
            state = self._load()
            out = self._joiner.on_event(state, event, partition=partition, offset=offset, now_ms=now_ms, key=key)
        self._save(state, timers, now_ms)
        yield from map(_row, out)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Row]:
        timers = ctx.timer_service()
        now_ms = max(timestamp, timers.current_watermark())
        state = self._load()
        if state.empty:
            return
        state.timer_ms = None if state.timer_ms == timestamp else state.timer_ms
        out = self._joiner.on_timer(state, ctx.get_current_key(), now_ms)
        self._save(state, timers, now_ms)
        yield from map(_row, out)

    def _outcome(self, raw: bytes) -> TripEvent | None:
        """The event, if some label may read it. Most are none: they cost no state. A malformed one is the feature job's to report."""
        try:
            event = decode(raw, TripEvent)
        except RecordError:
            self._count("event_malformed")
            return None
        if not self._joiner.is_outcome(event):
            self._count("event_no_outcome")
            return None
        return event

    def _load(self) -> OrderState:
        raw = self._state.value()
        return OrderState() if raw is None else decode_state(raw)

    def _save(self, state: OrderState, timers: Any, now_ms: int) -> None:
        for name, count in self._joiner.counts.items():
            self._count(name, count)
        self._joiner.counts.clear()
        if state.empty:
            self._state.clear()
            return
        due_ms = self._joiner.next_due_ms(state, now_ms)
        if due_ms is not None and due_ms != state.timer_ms:
            state.timer_ms = due_ms
            timers.register_event_time_timer(due_ms)
        self._state.update(encode_state(state))

    def _count(self, name: str, number: int = 1) -> None:
        if name not in self._counters:
            self._counters[name] = self._metrics.counter(name)
        self._counters[name].inc(number)


def assert_thread_mode() -> None:
    """Raises: RuntimeError unless this Python runs inside a JVM."""
    executable = os.path.basename(os.readlink("/proc/self/exe"))
    if executable != "java":
        raise RuntimeError(
            f"the sample joiner runs inside '{executable}', not in the TaskManager's JVM: python.execution-mode must be 'thread', and "
            "PYTHONPATH must hold the site-packages with pemja before the TaskManager starts"
        )


def _row(record: Output) -> Row:
    if isinstance(record, Sample):
        return Row(SAMPLES, record.sample_id, encode(record))
    return Row(DEAD_LETTERS if isinstance(record, DeadLetter) else LEDGER, None, encode(record))
