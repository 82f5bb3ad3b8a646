"""The two descriptions of a journal, pyarrow's and Spark's, are of the same thing."""

import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory import journal
from purgatory.pipeline import _schemas


@pytest.mark.parametrize("folder", ["operations", "checks"])
def test_spark_reads_what_the_journal_writes(folder: str) -> None:
    written = from_arrow_schema(journal.FOLDERS[folder])
    read = _schemas.FOLDERS[folder]

    assert [(field.name, field.dataType) for field in written] == [
        (field.name, field.dataType) for field in read
    ]
