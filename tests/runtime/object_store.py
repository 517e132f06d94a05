"""An object store that speaks as much of S3 as a reader needs, over the files of a directory."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class Handler(BaseHTTPRequestHandler):
    """Answers HEAD and GET of objects, and lists those of a bucket."""

    root: Path
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_HEAD(self):
        self._answer(body=False)

    def do_GET(self):
        self._answer(body=True)

    def _answer(self, body):
        url = urlsplit(self.path)
        query, file = parse_qs(url.query), self.root / unquote(url.path).strip("/")
        if "list-type" in query:
            self._send(200, self._listing(unquote(url.path).strip("/"), query.get("prefix", [""])[0]), body)
        elif not file.is_file():
            self._send(404 if "/" in unquote(url.path).strip("/") or not file.is_dir() else 200, b"", body)
        else:
            data, asked = file.read_bytes(), self.headers.get("Range")
            if asked is None:
                self._send(200, data, body)
            else:
                first, last = asked.removeprefix("bytes=").split("-")
                part = data[int(first) : int(last) + 1]
                whole = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
                self._send(206, part, body, {"Content-Range": whole})

    def _listing(self, bucket, prefix):
        files = (file for file in sorted((self.root / bucket).rglob("*")) if file.is_file())
        keys = [(file.relative_to(self.root / bucket).as_posix(), file.stat().st_size) for file in files]
        found = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for key, size in keys
            if key.startswith(prefix)
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode()

    def _send(self, status, data, body, headers=None):
        self.send_response(status)
        for name, value in {"Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *args):
        """Say nothing."""


@contextmanager
def object_store(root):
    """Serve the folders of a directory as buckets during a block, and say where."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"root": root}))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
