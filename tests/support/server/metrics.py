"""What a collector's /metrics says."""

from prometheus_client.parser import text_string_to_metric_families


def samples(client, **wanted):
    """The values of a scrape by name and the labels' values in alphabetical order of their names."""
    scraped = client.get("/metrics")
    assert scraped.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(scraped.text)
        for sample in family.samples
    }
