"""Which form a scraper gets, and that OpenMetrics is what its own parser accepts."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from probes.exposition import AgentState, Histogram, Series
from probes.negotiation import Form, choose, expose
from rebalancer.catalog import METRICS, PROBE_METRICS
from tests.unit.probes import protobuf_reader
from tests.unit.probes.test_exposition import VALUES, measured

PROTOBUF = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
NATIVE_SCRAPE = (
    f"{PROTOBUF};q=0.6,application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,"
    "text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)
STATE = AgentState(VALUES, "1", "a", Histogram(), {("b", "ok"): 3})


@pytest.mark.parametrize(
    ("sentence", "accept", "form"),
    [
        ("a scrape of native histograms", NATIVE_SCRAPE, "protobuf"),
        ("the same without protobuf", NATIVE_SCRAPE.split(",", 1)[1], "openmetrics"),
        ("protobuf that is only the second wish", f"text/plain;version=0.0.4,{PROTOBUF};q=0.5", "text"),
        ("another message", "application/vnd.google.protobuf;proto=other;encoding=delimited", "text"),
        ("protobuf as text", f"{PROTOBUF.replace('delimited', 'text')}", "text"),
        ("an older OpenMetrics", "application/openmetrics-text;version=0.0.1", "text"),
        ("quotes and spaces", 'Application/OpenMetrics-Text ; version="1.0.0" ; q=0.9', "openmetrics"),
        ("a refusal", "application/openmetrics-text;version=1.0.0;q=0", "text"),
        ("no weight at all", "application/openmetrics-text;q=much", "text"),
        ("a browser", "text/html,*/*;q=0.8", "text"),
        ("nothing", "", "text"),
    ],
)
def test_the_dearest_readable_wish_is_granted(sentence: str, accept: str, form: Form) -> None:
    assert choose(accept) == form, sentence


def exposed(accept: str) -> tuple[str, bytes]:
    series = [Series("a", 'b "quoted"\n', "udp", measured(), ("192.0.2.1:8620",), "eu", 13)]
    return expose(accept, series, STATE, 0.0)


def test_openmetrics_is_read_by_its_own_parser_with_all_families() -> None:
    kind, body = exposed("application/openmetrics-text;version=1.0.0")
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    assert body.endswith(b"\n# EOF\n")
    parsed = text_string_to_metric_families(body.decode())  # type: ignore[no-untyped-call]  # has no types
    found = {family.name: family for family in parsed}
    suffix = {"counter": "_total", "info": "_info"}
    wanted = {item.name.removesuffix(suffix.get(item.kind, "")): item for item in PROBE_METRICS}
    assert set(found) == set(wanted)
    for name, item in wanted.items():
        assert found[name].type == item.kind, name
        for sample in found[name].samples:
            assert sample.name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") == item.name


def test_plain_text_has_no_end_mark_and_names_counters_in_full() -> None:
    kind, body = exposed("")
    assert kind.startswith("text/plain; version=0.0.4")
    assert b"# EOF" not in body
    assert b"# TYPE rebalancer_probe_probes_total counter\n" in body


def test_a_native_scrape_gets_messages_that_can_be_read() -> None:
    kind, body = exposed(NATIVE_SCRAPE)
    assert "proto=io.prometheus.client.MetricFamily" in kind
    assert set(protobuf_reader.families(body)) <= set(METRICS)
