"""URLs as they are told: the place, and never a secret."""

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from runtime.model.urls import shown_file, shown_url
from runtime.systems.folders.growing import growing_folder
from runtime.systems.folders.rolling import rolling_files
from tests.scale import examples

SCHEMES = st.sampled_from(
    ("postgres", "redis", "rediss", "https", "wss", "webhook+https", "s3", "growing:s3", "sftp", "rolling:sftp")
)
HOSTS = st.sampled_from(("host", "host:6379", "[::1]:5432", "a.b-c:80"))
PATHS = st.sampled_from(("", "/", "/shop", "/a/b.csv", "/day=1/*.csv"))


@given(scheme=SCHEMES, who=st.sampled_from(("me:", "", ":")), secret=st.text("a:@/?=&%#_é"), host=HOSTS, path=PATHS)
@settings(max_examples=examples(400, 4_000))
def test_the_place_is_told_and_no_secret(scheme: str, who: str, secret: str, host: str, path: str) -> None:
    # Nobody could say where the host begins.
    assume(not {"/", "?"} & {*secret} or ("@" not in secret and who))
    url = f"{scheme}://{who}SECRET{secret}SECRET@{host}{path}"
    for told in (shown_url(url), shown_file(url)):
        assert told == f"{scheme}://{host}{path}"


@given(scheme=SCHEMES, host=HOSTS, path=PATHS, at=st.sampled_from(("", "/a@b", "/@")))
def test_a_place_without_secrets_is_told_as_it_is(scheme: str, host: str, path: str, at: str) -> None:
    url = f"{scheme}://{host}{path}{at}"
    assert shown_url(url) == shown_file(url) == url


def test_options_are_told_where_they_are_part_of_a_name() -> None:
    assert shown_url("s3://lake/?.csv") == "s3://lake/?.csv"
    assert shown_file("s3://lake/a?b=1.csv") == "s3://lake/a?b=1.csv"
    assert shown_url("redis://host/0?password=SECRET") == "redis://host/0"
    assert shown_url("https://host/hook?SECRET") == shown_file("https://host/hook?SECRET") == "https://host/hook"
    assert shown_url("abfss://lake@host/a?b=1") == "abfss://lake@host/a"


def test_folders_are_named_without_secrets() -> None:
    for connector in (growing_folder("sftp://me:SECRET@host/in"), rolling_files("s3://key:SECRET@lake/out")):
        assert "SECRET" not in repr(connector)
