"""The queries of a store in PostgreSQL. {table} is the table of versions, {channel} the name
of the channel, {settled} the table of delivered values, {epoch} and {state} the keys of rows."""

from typing import Final

EPOCH_KEY: Final = b"\xff"

STATE_KEY: Final = b"\xfe"
"""Key of the row that keeps the state of forgetting: in `changed` the last transaction whose change
was forgotten, in `epoch` the samples as JSON."""

SETTINGS: Final = """
    SELECT pg_catalog.set_config('statement_timeout', '0', false) WHERE {condition};
    SELECT pg_catalog.set_config('search_path', coalesce(
        pg_catalog.string_agg(pg_catalog.quote_ident(schema), ', '), ''), false)
    FROM pg_catalog.unnest(pg_catalog.array_remove(
        pg_catalog.current_schemas(false), 'pg_catalog')) AS schema HAVING {condition};
    SELECT set_config(name, wanted, false) FROM pg_settings JOIN (VALUES
        ('default_transaction_isolation', 'read committed'),
        ('default_transaction_read_only', 'off'),
        ('lock_timeout', '{lock_timeout}'),
        ('transaction_timeout', '0'),
        ('idle_in_transaction_session_timeout', '10s'),
        ('idle_session_timeout', '0')
    ) AS settings (name, wanted) USING (name)
    WHERE (name <> 'default_transaction_read_only'
        OR source IN ('database', 'user', 'database user')) AND {condition}
"""
"""Sets what the queries depend on, whatever the role or the database has set. A server that is
read-only as a whole stays so. The `search_path` keeps its schemas, which have the tables, but
`pg_catalog` is searched first. Settings that a server lacks are left out (`idle_session_timeout` is
of PostgreSQL 14, `transaction_timeout` of 17).

These are statements and no parameters of the connection, because PgBouncer refuses the latter. With
`IS_DIRECT` as the condition they change nothing behind a pooler."""

IS_DIRECT: Final = "pg_catalog.pg_backend_pid() OPERATOR(pg_catalog.=) {pid}"
"""Whether the process that answers is the one to which the client connected: a pooler sends an id
of its own."""

KEY: Final = "decode('{}', 'hex')"
"""A key in a query, whatever `standard_conforming_strings` is on a caller's connection."""

COLUMNS: Final = ["key bytea", "version int8", "changed xid8", "epoch text"]

SETTLED_COLUMNS: Final = ["key bytea", "token bytea", "expires timestamptz", "value bytea"]

SHAPE: Final = """
    SELECT format('%I.%I', nspname, relname) AS name, relowner::regrole::text AS owner,
        ARRAY(SELECT attname || ' ' || CASE WHEN typnamespace = 'pg_catalog'::regnamespace
            THEN typname ELSE 'another type' END
            FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
            WHERE attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped
                ORDER BY attnum) AS columns,
        pg_has_role(relowner, 'MEMBER') OR pg_has_role(datdba, 'MEMBER')
            OR relowner IN (datdba, nspowner)
            OR (SELECT rolsuper FROM pg_roles WHERE oid = relowner) AS is_trusted,
        relkind <> 'r' OR relhastriggers OR relhasrules AS has_code,
        row_security_active(pg_class.oid) AS hides_rows,
        ARRAY(SELECT verb FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS verb
            WHERE NOT has_table_privilege(pg_class.oid, verb)) AS missing, current_user AS role
    FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
        JOIN pg_database ON datname = current_database()
    WHERE pg_class.oid = to_regclass($1)
"""
"""Columns, owner and attached code of a table, and the rights that this role lacks. Code that
another role has attached would run with the writer's rights. `typname` is always `pg_catalog`'s, whatever the `search_path`."""

GRANTEES: Final = """
    SELECT DISTINCT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END
    FROM pg_class, aclexplode(relacl) WHERE oid = to_regclass($1) AND grantee <> relowner
"""
"""The roles with rights to a table, other than its owner: a new one has those of `ALTER DEFAULT
PRIVILEGES`."""

CREATE: Final = """
    CREATE UNLOGGED TABLE {table} (key bytea PRIMARY KEY, version bigint NOT NULL,
        changed xid8 NOT NULL, epoch text);
    CREATE INDEX ON {table} (changed)
"""

CREATE_SETTLED: Final = """
    CREATE UNLOGGED TABLE {table} (
        key bytea PRIMARY KEY, token bytea NOT NULL, expires timestamptz NOT NULL,
            value bytea NOT NULL
    );
    CREATE INDEX ON {table} (expires)
"""

CHANNEL: Final = (
    "(SELECT '{prefix}_news_' || relnamespace FROM pg_class WHERE oid = to_regclass('{table}'))"
)

READ: Final = """
    SELECT key, version, epoch, pg_current_snapshot()::text FROM {table}
        WHERE key = {epoch} AND xmin = changed::xid
    UNION ALL SELECT key, version, changed::text, NULL FROM {table} WHERE key = {state}
    UNION ALL SELECT key, version, NULL, NULL FROM {table} WHERE key = ANY ($1::bytea[])
    UNION ALL SELECT key, version, changed::text, '' FROM (
        (SELECT * FROM {table} WHERE changed = ANY ($2::text[]::xid8[])
            AND (changed, key) > ($3::text::xid8, $4::bytea)
            ORDER BY changed, key LIMIT {rows})
        UNION ALL
        (SELECT * FROM {table} WHERE changed >= $5::text::xid8
            AND (changed, key) > ($3::text::xid8, $4::bytea)
            ORDER BY changed, key LIMIT {rows})
        ORDER BY changed, key LIMIT {rows}
    ) AS changes WHERE key < {state}
"""

WRITE: Final = """
    WITH change AS MATERIALIZED (
        SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::bigint[]) AS change (key, floor,
            increment)
    ), state AS MATERIALIZED (
        SELECT version AS base, epoch FROM {table} WHERE key = {epoch} AND xmin = changed::xid
    ), raised AS (
        INSERT INTO {table} AS row (key, version, changed)
        SELECT key, greatest(floor, base) + increment, pg_current_xact_id()
            FROM change LEFT JOIN state ON true ORDER BY key
        ON CONFLICT (key) DO UPDATE SET
            version = (SELECT greatest(row.version, floor) + increment FROM change
                WHERE change.key = row.key),
            changed = pg_current_xact_id()
        RETURNING key, version
    ), message AS MATERIALIZED (
        SELECT pg_current_xact_id()::text::bigint AS position, CASE
            WHEN $4 <> '' THEN pg_notify({channel}, $4) END
    )
    SELECT raised.key, raised.version, state.epoch, position
        FROM message LEFT JOIN state ON true LEFT JOIN raised ON true
"""

BEGIN_EPOCH: Final = """
    WITH begun AS (
        INSERT INTO {table} VALUES ({epoch}, 0, pg_current_xact_id(), $1)
        ON CONFLICT (key) DO UPDATE SET changed = pg_current_xact_id(), epoch = $1
            WHERE {table}.xmin <> {table}.changed::xid
        RETURNING epoch
    )
    SELECT pg_notify({channel}, '[]') FROM begun
"""

ADOPT: Final = """
    UPDATE {table} SET changed = pg_current_xact_id()
        WHERE changed > pg_current_xact_id() AND key <> {epoch}
"""
"""For a table restored from another server, with other transaction numbers."""

LOCK: Final = "LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE"

AGE: Final = """
    SELECT extract(epoch FROM clock_timestamp())::float8,
        pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1,
        (SELECT epoch FROM {table} WHERE key = {state})
"""

SAMPLE: Final = """
    INSERT INTO {table} VALUES ({state}, 0, '0', $1) ON CONFLICT (key) DO UPDATE SET epoch = $1
"""

FORGET: Final = """
    WITH forgotten AS (
        DELETE FROM {table} WHERE key = ANY (ARRAY(SELECT unnest($1::bytea[]) UNION ALL (
            SELECT key FROM {table} WHERE changed <= $2::text::xid8 AND key < {state}
                ORDER BY changed LIMIT $3
        ))) AND EXISTS (SELECT FROM {table} WHERE key = {epoch} AND xmin = changed::xid)
            RETURNING version, changed
    ), highest AS (
        SELECT max(version) AS version, max(changed::text::bigint)::text::xid8 AS changed,
            count(*) AS count FROM forgotten
    ), raised AS (
        UPDATE {table} AS row SET version = greatest(row.version, highest.version),
            changed = pg_current_xact_id()
        FROM highest WHERE key = {epoch} AND count > 0
    ), marked AS (
        INSERT INTO {table} AS row SELECT {state}, 0, changed, '[]' FROM highest WHERE count > 0
        ON CONFLICT (key) DO UPDATE SET changed = greatest(row.changed, excluded.changed)
    )
    SELECT count FROM highest
"""

RENEW: Final = """
    WITH renewed AS (
        UPDATE {table} SET epoch = $1, changed = pg_current_xact_id()
            WHERE key = {epoch} AND epoch = $2 RETURNING epoch
    )
    SELECT pg_notify({channel}, '[]') FROM renewed
"""

SETTLE: Final = """
    WITH delivery AS MATERIALIZED (
        SELECT * FROM unnest($1::bytea[], $2::text[], $3::bytea[], $4::float8[], $5::bytea[])
            AS delivery (key, name, value, ttl, token)
    ), settled AS (
        INSERT INTO {settled} AS row (key, token, expires, value)
        SELECT key, token, clock_timestamp() + ttl * interval '1 second', value FROM delivery
            ORDER BY key
        ON CONFLICT (key) DO UPDATE SET token = excluded.token, expires = excluded.expires,
            value = excluded.value
            WHERE row.expires <= clock_timestamp()
        RETURNING key
    ), names AS MATERIALIZED (
        SELECT '{{"settled":[' || string_agg(name, ',') || ']}}' AS names
            FROM settled JOIN delivery USING (key)
    ), message AS MATERIALIZED (
        SELECT pg_notify({channel}, CASE WHEN octet_length(names) <= $6 THEN names
            ELSE '{{"settled":[]}}' END)
        FROM names WHERE names IS NOT NULL
    )
    SELECT key FROM settled, message
"""
"""Settles keys, and returns the newly settled ones. The message omits names that do not fit."""

TOKENS: Final = "SELECT key, token FROM {settled} WHERE key = ANY ($1::bytea[])"

SETTLED: Final = """
    SELECT key, value FROM (
        SELECT key, value, sum(octet_length(value)) OVER (ORDER BY key) - octet_length(value)
            AS before
        FROM {settled} WHERE key = ANY ($1::bytea[]) AND expires > clock_timestamp()
    ) AS found WHERE before <= $2
"""

SWEEP: Final = """
    WITH swept AS (
        DELETE FROM {settled} WHERE key = ANY (ARRAY(
            SELECT key FROM {settled} WHERE expires <= clock_timestamp() ORDER BY expires LIMIT $1
            FOR UPDATE SKIP LOCKED
        )) AND expires <= clock_timestamp() RETURNING 1
    )
    SELECT count(*) FROM swept
"""
