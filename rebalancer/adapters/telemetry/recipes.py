"""Request counters of common sources, with the settings that read them; the README's table is made from this list."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Recipe:
    """How demand is read from one source.

    Attributes:
        source: who exports it.
        metric: the counter's name.
        query: `demand.query`; empty where the counter tells of origins only.
        workload_label: `demand.workloadLabel`.
        workload: what the label holds, and what to do where that is not the Deployment's name.
        origin: where the origin of demand can come from.
    """

    source: str
    metric: str
    query: str
    workload_label: str
    workload: str
    origin: str


_ENTRY = "`origin: entryCluster` where users reach the nearest cluster first"
_RELABEL = "a relabelling rule makes a label `workload` of it"
RECIPES: tuple[Recipe, ...] = (
    Recipe("ingress-nginx", "nginx_ingress_controller_requests", "nginx_ingress_controller_requests",
           "exported_service",
           "the Service behind the Ingress (`service` where the scrape honours labels), with `exported_namespace`",
           _ENTRY),
    Recipe("Traefik", "traefik_service_requests_total", "traefik_service_requests_total", "workload",
           f"`service` is `<namespace>-<Service>-<port>@kubernetes`: {_RELABEL}", _ENTRY),
    Recipe("HAProxy", "haproxy_backend_http_requests_total", "haproxy_backend_http_requests_total", "workload",
           f"`proxy` joins namespace, Service and port with `_`: {_RELABEL}", _ENTRY),
    Recipe("Istio", "istio_requests_total", 'istio_requests_total{reporter="destination"}', "destination_workload",
           "the Deployment; the namespace is that of the scraped pod",
           f"{_ENTRY}; in one mesh over all clusters, a label with the region made of `source_cluster`"),
    Recipe("Linkerd", "request_total", 'request_total{direction="inbound"}', "deployment",
           "the Deployment, as Linkerd's own scrape configuration sets it from the pod's labels", _ENTRY),
    Recipe("Envoy Gateway (Gateway API)", "envoy_cluster_upstream_rq_total",
           'envoy_cluster_upstream_rq_total{envoy_cluster_name=~"httproute/.*"}', "workload",
           f"`envoy_cluster_name` is `httproute/<namespace>/<HTTPRoute>/rule/<n>`: {_RELABEL}", _ENTRY),
    Recipe("Fastly exporter", "fastly_rt_requests_total", "", "",
           "none: it counts at the edge, in no cluster",
           "`originShares`, from the rates by `datacenter` of one `service_name`"),
    Recipe("Cloudflare exporter", "cloudflare_zone_requests_country", "", "",
           "none: it counts at the edge, in no cluster",
           "`originShares`, from the rates by `country` or `region` of one `zone`"),
)  # fmt: skip
