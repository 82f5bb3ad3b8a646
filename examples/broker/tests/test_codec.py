"""The broker reads kio's output, and kio reads the broker's: every message in every version that
the broker offers."""

import io
import struct
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from purgatory_broker.codec import COMMON_NAMES, Field, Frame, Malformed, fields_of, serde_of
from purgatory_broker.wire import APIS, Api
from raw import make

BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def values_of(field: Field) -> st.SearchStrategy[Any]:
    if field.nested is not None:
        one = entities_of(field.nested)
    elif field.kind in BITS:
        one = st.integers(-(2 ** (BITS[field.kind] - 1)), 2 ** (BITS[field.kind] - 1) - 1)
    elif field.kind.startswith("timedelta"):
        one = st.integers(0, 2**31 - 1).map(
            lambda milliseconds: timedelta(milliseconds=milliseconds)
        )
    else:
        kinds = {
            "bool": st.booleans(),
            "string": st.text(max_size=5),
            "uuid": st.uuids(),
            "error_code": st.sampled_from(list(ErrorCode)),
        }
        one = kinds.get(
            field.kind, st.none() if field.kind == "datetime_i64" else st.binary(max_size=200)
        )
    if field.is_array:
        one = st.lists(one, max_size=3).map(tuple)
    return st.none() | one if field.is_nullable else one


def entities_of(cls: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {field.name: values_of(field) for field in fields_of(cls).values()}
    )


def mapped(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """Entities of both kinds as dictionaries with the common names."""
    value = vars(value) if isinstance(value, SimpleNamespace) else value
    if isinstance(value, dict):
        return {COMMON_NAMES.get(name, name): mapped(part, leaf) for name, part in value.items()}
    return (
        [mapped(part, leaf) for part in value] if isinstance(value, tuple | list) else leaf(value)
    )


def seconds(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else value


def milliseconds(value: Any) -> Any:
    value = seconds(value)
    return round(value * 1000) if isinstance(value, float) else value


def all_versions(load: Callable[[int, int], Any], api: Api) -> list[Any]:
    """The classes of all versions that are offered."""
    return [load(api.key, version) for version in range(api.min_version, api.max_version + 1)]


def properties(function: Any) -> Any:
    return settings(max_examples=10, deadline=None)(given(st.data())(function))


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_what_kio_writes_is_read(api: Api) -> None:
    for cls in all_versions(load_request_schema, api):
        entities, read = entities_of(cls), serde_of(cls).read

        @properties
        def check(data: st.DataObject) -> None:
            values = data.draw(entities)
            buffer = io.BytesIO()
            entity_writer(cls)(buffer, make(cls, values))
            written = Frame(b"before" + buffer.getvalue() + b"after")
            entity, end = read(written, 6)
            assert mapped(entity, milliseconds) == mapped(values, milliseconds), cls
            assert end == len(written) - 5
            if end > 6:
                torn = Frame(written[: data.draw(st.integers(6, end - 1))])
                with pytest.raises((Malformed, IndexError, UnicodeDecodeError, struct.error)):
                    read(torn, 6)

        check()


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_what_is_written_kio_reads(api: Api) -> None:
    for cls in all_versions(load_response_schema, api):
        entities, write = entities_of(cls), serde_of(cls).write

        @properties
        def check(data: st.DataObject) -> None:
            values, out = data.draw(entities), bytearray()
            write(out, mapped(values, seconds) | {"what no version has": 1})
            entity, size = entity_reader(cls)(bytes(out), 0)
            assert entity == make(cls, values), cls
            assert size == len(out)

        check()
