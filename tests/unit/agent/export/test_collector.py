"""The API of a collector: pages of an answer."""

from gradcanary.export.collector import CollectorClient


class PagedClient(CollectorClient):
    """Answers with one item a page, without a collector."""

    def __init__(self, pages):
        super().__init__("http://127.0.0.1:9", None)
        self.pages_left = list(pages)
        self.queries = []

    def request(self, method, path, body=None, **query):
        self.queries.append((method, path, query.get("after", "first")))
        return {"runs": [self.pages_left.pop(0)], "next": self.pages_left[0] if self.pages_left else None}


def test_pages_are_read_to_the_end_or_to_the_limit():
    client = PagedClient("abc")
    assert client.pages("/runs", "runs", "after", 5) == (["a", "b", "c"], None)
    assert client.queries == [("GET", "/runs", "first"), ("GET", "/runs", "b"), ("GET", "/runs", "c")]
    assert PagedClient("abc").pages("/runs", "runs", "after", 2) == (["a", "b"], "c")
