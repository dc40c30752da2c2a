"""A web server that gives parts of files, and does on demand what servers should not do."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Web:
    """``files`` by path. ``odd``: what is done instead of what is right."""

    def __init__(self, address):
        self.address = address
        self.files = {}
        self.odd = None
        self.asked = []
        self.before = None  # called with the range that is asked for, before it is given

    def etag(self, path):
        return '"%x"' % (hash(self.files[path]) & 0xFFFFFFFF)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"  # each connection ends with its answer, and the thread that gave it

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        web, path = self.server.web, self.path.lstrip("/")
        content = web.files.get(path)
        if content is None:
            return self.give(404, b"")
        span = self.headers.get("Range")
        web.asked.append((self.command, path, span))
        wanted = self.headers.get("If-Match")
        if wanted is not None and wanted != web.etag(path) and web.odd != "forgets conditions":
            return self.give(412, b"")
        if span is None or web.odd == "ignores ranges":
            return self.give(200, content)
        if web.before is not None:
            web.before(span)
        begin, end = (int(each) for each in span.removeprefix("bytes=").split("-"))
        if web.odd == "gives other bytes":
            begin, end = begin + 1, end + 1
        part = content[begin : end + 1]
        return self.give(206, part, {"Content-Range": f"bytes {begin}-{begin + len(part) - 1}/{len(content)}"})

    def give(self, status, content, headers=()):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        if status in {200, 206}:
            self.send_header("ETag", self.server.web.etag(self.path.lstrip("/")))
            self.send_header("Last-Modified", "Thu, 19 Nov 2026 10:00:00 GMT")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


class ManyAtOnce(ThreadingHTTPServer):
    """A server that lets as many connections wait as a fetcher opens: with five, others are tried again for seconds."""

    request_queue_size = 256


@contextmanager
def serving():
    server = ManyAtOnce(("127.0.0.1", 0), Handler)
    server.web = Web(f"127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))  # else its end takes half a second
    thread.start()
    try:
        yield server.web
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
