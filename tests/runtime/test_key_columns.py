"""Keys are bytes: encoding a column of them, and remembering what was encoded, changes nothing."""

from hypothesis import given
from hypothesis import strategies as st

from runtime.serdes import KeyColumn, Natural, String, Tagged, encode_all, remembering

ALIKE = st.sampled_from([1, True, 1.0, 0, False, 0.0, -0.0, "1", None, "", "é"])
KEYS = st.lists(ALIKE | st.integers() | st.text(max_size=3) | st.tuples(st.integers(), st.text(max_size=2)), max_size=8)


@given(st.lists(KEYS, max_size=4), st.sampled_from([Tagged(), Natural()]))
def test_a_column_is_encoded_as_its_keys_are(columns, serde):
    remembered = KeyColumn(serde)
    for keys in columns:
        assert remembered.encode(keys) == [None if key is None else serde.encode(key) for key in keys]


@given(st.lists(ALIKE | st.integers(), max_size=12))
def test_what_is_remembered_is_what_was_decoded(keys):
    decode = remembering(Tagged().decode)
    for _ in range(2):
        for key in keys:
            decoded = decode(None if key is None else Tagged().encode(key))
            assert (type(decoded), decoded) == (type(key), key)


def test_a_list_that_was_decoded_is_nobody_elses():
    decode = remembering(Tagged().decode)
    first, second = decode(Tagged().encode([1])), decode(Tagged().encode([1]))
    first.append(2)
    assert second == [1]


@given(st.lists(st.text(max_size=4) | st.none(), max_size=6))
def test_text_keys_are_their_utf_8(keys):
    assert encode_all(String(), keys) == [None if key is None else key.encode() for key in keys]
