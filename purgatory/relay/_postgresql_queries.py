"""What a store in PostgreSQL asks its server. {table} is that of the versions; {channel} and {quiet} are names of channels."""

from typing import Final

EPOCH_KEY: Final = b"\xff"

FORGOTTEN_KEY: Final = b"\xfe"
"""Of the row that has in `changed` the last transaction whose change was forgotten, and in `epoch` the samples as JSON."""

COLUMNS: Final = [("key", "bytea"), ("version", "bigint"), ("changed", "xid8"), ("epoch", "text")]

SHAPE: Final = """
    SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute
    WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""

CREATE: Final = """
    CREATE UNLOGGED TABLE {table} (key bytea PRIMARY KEY, version bigint NOT NULL, changed xid8 NOT NULL, epoch text);
    CREATE INDEX ON {table} (changed)
"""

CHANNEL: Final = "(SELECT '{prefix}_news_' || relnamespace FROM pg_class WHERE oid = to_regclass('{table}'))"

QUIET_CHANNEL: Final = CHANNEL.replace("news", "quiet")

READ: Final = """
    SELECT key, version, epoch, pg_current_snapshot()::text FROM {table} WHERE key = '\\xff' AND xmin = changed::xid
    UNION ALL SELECT key, version, changed::text, NULL FROM {table} WHERE key = '\\xfe'
    UNION ALL SELECT key, version, NULL, NULL FROM {table} WHERE key = ANY ($1::bytea[])
    UNION ALL SELECT key, version, changed::text, '' FROM (
        (SELECT * FROM {table} WHERE changed = ANY ($2::text[]::xid8[]) AND (changed, key) > ($3::text::xid8, $4::bytea)
            ORDER BY changed, key LIMIT {rows})
        UNION ALL
        (SELECT * FROM {table} WHERE changed >= $5::text::xid8 AND (changed, key) > ($3::text::xid8, $4::bytea)
            ORDER BY changed, key LIMIT {rows})
        ORDER BY changed, key LIMIT {rows}
    ) AS changes WHERE key < '\\xfe'
"""

WRITE: Final = """
    WITH change AS MATERIALIZED (
        SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::bigint[]) AS change (key, floor, increment)
    ), state AS MATERIALIZED (
        SELECT version AS base, epoch FROM {table} WHERE key = '\\xff' AND xmin = changed::xid
    ), raised AS (
        INSERT INTO {table} AS row (key, version, changed)
        SELECT key, greatest(floor, base) + increment, pg_current_xact_id() FROM change LEFT JOIN state ON true ORDER BY key
        ON CONFLICT (key) DO UPDATE SET
            version = (SELECT greatest(row.version, floor) + increment FROM change WHERE change.key = row.key),
            changed = pg_current_xact_id()
        RETURNING key, version
    ), message AS MATERIALIZED (
        SELECT pg_current_xact_id()::text::bigint AS position, CASE WHEN $4 <> '' THEN pg_notify({channel}, $4) END
    )
    SELECT raised.key, raised.version, state.epoch, position FROM message LEFT JOIN state ON true LEFT JOIN raised ON true
"""

BEGIN_EPOCH: Final = """
    WITH begun AS (
        INSERT INTO {table} VALUES ('\\xff', 0, pg_current_xact_id(), $1)
        ON CONFLICT (key) DO UPDATE SET changed = pg_current_xact_id(), epoch = $1 WHERE {table}.xmin <> {table}.changed::xid
        RETURNING epoch
    )
    SELECT pg_notify({channel}, '[]'), pg_notify({quiet}, '[]') FROM begun
"""

ADOPT: Final = """
    UPDATE {table} SET changed = pg_current_xact_id() WHERE changed > pg_current_xact_id() AND key <> '\\xff'
"""
"""For a table that was restored from another server, whose transactions had other numbers."""

LOCK: Final = "LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE"

AGE: Final = """
    SELECT extract(epoch FROM clock_timestamp())::float8, pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1,
        (SELECT epoch FROM {table} WHERE key = '\\xfe')
"""

SAMPLE: Final = """
    INSERT INTO {table} VALUES ('\\xfe', 0, '0', $1) ON CONFLICT (key) DO UPDATE SET epoch = $1
"""

FORGET: Final = """
    WITH forgotten AS (
        DELETE FROM {table} WHERE key = ANY (ARRAY(SELECT unnest($1::bytea[]) UNION ALL (
            SELECT key FROM {table} WHERE changed <= $2::text::xid8 AND key < '\\xfe' ORDER BY changed LIMIT $3
        ))) AND EXISTS (SELECT FROM {table} WHERE key = '\\xff' AND xmin = changed::xid) RETURNING version, changed
    ), highest AS (
        SELECT max(version) AS version, max(changed::text::bigint)::text::xid8 AS changed, count(*) AS count FROM forgotten
    ), raised AS (
        UPDATE {table} AS row SET version = greatest(row.version, highest.version), changed = pg_current_xact_id()
        FROM highest WHERE key = '\\xff' AND count > 0
    ), marked AS (
        INSERT INTO {table} AS row SELECT '\\xfe', 0, changed, '[]' FROM highest WHERE count > 0
        ON CONFLICT (key) DO UPDATE SET changed = greatest(row.changed, excluded.changed)
    )
    SELECT count FROM highest
"""

RENEW: Final = """
    WITH renewed AS (
        UPDATE {table} SET epoch = $1, changed = pg_current_xact_id() WHERE key = '\\xff' AND epoch = $2 RETURNING epoch
    )
    SELECT pg_notify({channel}, '[]'), pg_notify({quiet}, '[]') FROM renewed
"""
