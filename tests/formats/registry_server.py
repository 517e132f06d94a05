"""A registry of schemas over HTTP as Confluent's answers, with basic and bearer authorization, for the tests alone."""

import json
import threading
from base64 import b64encode
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

NOT_FOUND = {"subject": 40401, "version": 40402, "schema": 40403}


class Registry:
    """Schemas by number, and versions by subject; what is incompatible says `incompatible`."""

    def __init__(self):
        self.schemas, self.versions, self.asked = [], {}, []
        self.authorization = None
        self.incompatible = lambda old, new: []
        self.down = False

    def answer(self, method, path, body):
        self.asked.append((method, path))
        parts = [unquote(part) for part in path.strip("/").split("/")]
        if parts[0] == "schemas":
            number = int(parts[2])
            return self.schemas[number - 1] if 0 < number <= len(self.schemas) else self.absent("schema")
        if parts[0] == "compatibility":
            known = self.versions.get(parts[2])
            if not known:
                return self.absent("subject")
            messages = self.incompatible(self.schemas[known[-1] - 1], body)
            return {"is_compatible": not messages, "messages": messages}
        subject = parts[1]
        known = self.versions.get(subject, [])
        if method == "GET":
            if not known:
                return self.absent("subject")
            version = len(known) if parts[3] == "latest" else int(parts[3])
            return {
                "subject": subject,
                "version": version,
                "id": known[version - 1],
                **self.schemas[known[version - 1] - 1],
            }
        # Avro is what is meant where nothing is said, and is not told then.
        schema = {
            name: body[name]
            for name in ("schema", "schemaType", "references")
            if body.get(name) not in ([], None, "AVRO")
        }
        if len(parts) == 2:
            for version, number in enumerate(known, 1):
                if self.schemas[number - 1] == schema:
                    return {"subject": subject, "version": version, "id": number, **schema}
            return self.absent("schema" if known else "subject")
        if known and (messages := self.incompatible(self.schemas[known[-1] - 1], schema)):
            return {"error_code": 409, "message": str(messages)}
        if schema not in self.schemas:
            self.schemas.append(schema)
        number = self.schemas.index(schema) + 1
        if number not in known:
            self.versions[subject] = [*known, number]
        return {"id": number, "version": len(self.versions[subject])}

    def absent(self, what):
        return {"error_code": NOT_FOUND[what], "message": f"{what} not found"}


def basic(user, password):
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()


@contextmanager
def serving():
    """Serve a registry at a URL of this machine."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(None)

        def do_POST(self):
            self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def answer(self, body):
            said = registry.answer(self.command, urlsplit(self.path).path, body)
            status = int(str(said.get("error_code", 200))[:3])
            if registry.authorization is not None and self.headers["Authorization"] != registry.authorization:
                status, said = 401, {"error_code": 401, "message": "Unauthorized"}
            if registry.down:
                status, said = 503, {"error_code": 50301, "message": "down"}
            data = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    registry.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
