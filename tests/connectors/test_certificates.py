"""A certificate of another host ends a run at once, with one error that names the host: it is not tried again."""

import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from samza_dsl import App, SamzaError, connectors, skip
from samza_dsl.formats import Avro, SchemaRegistry


class Order(msgspec.Struct):
    id: int


class Quiet(ThreadingHTTPServer):
    """A server that expects clients which go away in the middle of the handshake."""

    shakes = 0

    def get_request(self) -> Any:
        self.shakes += 1
        return super().get_request()

    def handle_error(self, *_: object) -> None:
        """Do nothing."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quiet]:
    """A server on localhost with a certificate that names another host."""
    key, certificate = (tmp_path_factory.mktemp("tls") / name for name in ("key.pem", "certificate.pem"))
    made = f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -keyout {key}"
    named = ["-out", f"{certificate}", "-subj", "/CN=other.example", "-addext", "subjectAltName=DNS:other.example"]
    subprocess.run([*made.split(), *named], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with Quiet(("127.0.0.1", 0), BaseHTTPRequestHandler) as found:
        found.socket = context.wrap_socket(found.socket, server_side=True)
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("SSL_CERT_FILE", str(certificate))  # trusted where the libraries look at that now
            yield found
        found.shutdown()
        thread.join()


def posted(at: str) -> tuple[App, dict[str, Any]]:
    app = App("posted")
    app.input("orders", value=Order).send_to(app.output("copies", value=Order), on_error=skip)
    return app, {"orders": [Order(1)], "copies": connectors.webhook(f"https://{at}/hook")}


def registered(at: str) -> tuple[App, dict[str, Any]]:
    app = App("registered")
    form = Avro(Order, registry=SchemaRegistry(f"https://{at}"))
    app.input("orders", value=Order).send_to(app.output("copies", value=form), on_error=skip)
    return app, {"orders": [Order(1)]}


def listening(at: str) -> tuple[App, dict[str, Any]]:
    app = App("listening")
    app.input("orders", value=Order, on_error=skip).send_to(app.output("copies", value=Order))
    return app, {"orders": connectors.websocket(f"wss://{at}/orders")}


@pytest.mark.parametrize("make", [posted, registered, listening])
def test_a_certificate_of_another_host_ends_the_run_at_once(
    make: Callable[[str], tuple[App, dict[str, Any]]], server: Quiet, tmp_path: Path
) -> None:
    app, bound = make(f"localhost:{server.server_port}")
    before = server.shakes
    with pytest.raises(SamzaError, match=r"localhost.* (is not trusted|can't be asked): .*certificate"):
        app.run(tmp_path, bind=bound)
    assert server.shakes - before < 4  # of several addresses of the host, and not of several tries
