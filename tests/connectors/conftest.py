"""What the tests of folders share: places for them on this machine, in memory, and in an S3 of moto's."""

import itertools
import logging
from collections.abc import Iterator

import fsspec
import pytest
from fsspec.spec import AbstractFileSystem

from runtime.systems.files.places.remote import opened_system

NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """Serve an S3 at this machine's loopback address, and return the URL of a bucket there."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    said = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in said.items():
            patch.setenv(name, value)
        opened_system.cache_clear()
        fsspec.filesystem("s3", use_listings_cache=False).mkdir("lake")
        yield "s3://lake"
    opened_system.cache_clear()
    AbstractFileSystem.clear_instance_cache()
    server.stop()


@pytest.fixture(params=["here", "memory", pytest.param("s3", marks=pytest.mark.ci)])
def place(request: pytest.FixtureRequest, tmp_path: object) -> str:
    """Return a folder, which is not there yet: a path or a URL."""
    if request.param == "here":
        return f"{tmp_path}/place"
    if request.param == "memory":
        return f"memory://place-{next(NUMBERS)}"
    return f"{request.getfixturevalue('s3')}/place-{next(NUMBERS)}"
