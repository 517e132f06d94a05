"""What goes to another process comes there whole, though that process can't import it."""

import subprocess
import sys

import msgspec
import pytest

from operators.partition_by import hash_, ranges
from runtime.units.shipping import dumps, is_only_here, loads
from tests.source import ROOT
from tests.spark import carried_along, changed

READ = """
import sys
import runtime.encoding.serdes  # the library is installed there: only what is beside it can't be imported
from runtime.units.shipping import loads
sys.path[:] = [one for one in sys.path if one not in ("", {root!r})]
sys.modules.pop("tests", None)
print(*loads(sys.stdin.buffer.read())(), sep="\\n")
"""


@pytest.mark.parametrize("told", [carried_along.told, changed.told], ids=["functions", "records"])
def test_classes_and_functions_do_elsewhere_what_they_do_here(told):
    program, expected = [sys.executable, "-c", READ.format(root=str(ROOT))], told()  # what has run leaves its traces
    done = subprocess.run(program, input=dumps(told), capture_output=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().splitlines() == expected


def test_what_is_installed_goes_by_its_name():
    assert not is_only_here(msgspec) and not is_only_here(pytest)
    assert is_only_here(sys.modules[__name__])
    assert len(dumps(msgspec.json.decode)) < 500


@pytest.mark.parametrize("coder", [msgspec.json.Decoder(int, strict=False), msgspec.msgpack.Decoder(list[int])])
def test_decoders_are_made_anew(coder):
    same = loads(dumps(coder))
    assert (same.type, same.strict) == (coder.type, coder.strict)


def test_encoders_keep_their_hooks():
    encoder = msgspec.json.Encoder(enc_hook=str, order="sorted")
    assert loads(dumps(encoder)).encode({"b": 1j, "a": 1}) == encoder.encode({"b": 1j, "a": 1})


def test_a_partitioner_by_hashes_is_elsewhere_told_from_others():
    assert loads(dumps([hash_, ranges([1])])) == [hash_, ranges([1])]
    assert loads(dumps(hash_)) is hash_
