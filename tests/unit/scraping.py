"""What would Prometheus read from these metrics? Parsed by its own client, in both forms."""

from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families as plain_families

OPEN = "application/openmetrics-text; version=1.0.0"


def scraped(metrics):
    """All samples: (name, queue, value of another label): value."""
    body, content_type = metrics.expose()
    assert content_type.startswith("text/plain")
    samples = [sample for family in plain_families(body.decode()) for sample in family.samples]
    found = {(each.name, *_values(each.labels)): each.value for each in samples}
    assert len(found) == len(samples), "a sample is there twice"
    return found


def families(metrics):
    """The families in the OpenMetrics form, which its parser checks strictly."""
    body, content_type = metrics.expose(OPEN)
    assert content_type.startswith("application/openmetrics-text")
    return {family.name: family for family in open_families(body.decode())}


def _values(labels):
    return [labels[name] for name in sorted(labels, key=lambda name: (name != "queue", name))]
