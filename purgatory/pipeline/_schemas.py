"""The columns of a journal as schemas of Spark. `purgatory.journal` describes them.

Every column may be null here, since a journal may be broken, and the pipeline has to report that.
"""

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)


def columns(**types: DataType) -> StructType:
    """A schema whose columns may all be null."""
    return StructType([StructField(name, type_) for name, type_ in types.items()])


OPERATIONS: Final = columns(
    run_id=StringType(),
    purgatory=StringType(),
    kind=StringType(),
    operation_id=LongType(),
    keys=ArrayType(StringType()),
    started_at=TimestampType(),
    ended_at=TimestampType(),
    timeout_s=DoubleType(),
    outcome=StringType(),
    attempts=LongType(),
    ended_by=StringType(),
    missed_trigger=BooleanType(),
)

CHECKS: Final = columns(
    run_id=StringType(),
    purgatory=StringType(),
    key=StringType(),
    second=TimestampType(),
    checks=LongType(),
    tried=LongType(),
    completed=LongType(),
    part=LongType(),
)

FOLDERS: Final = {"operations": OPERATIONS, "checks": CHECKS}
"""By the name of the folder in the directory of a journal."""
