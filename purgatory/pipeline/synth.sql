-- The queries of `synth.py`, for DuckDB. Random values are hashes of the row's number and the seed. The
-- size of a file is given because DuckDB writes a folder, and no single file, only then.

CREATE MACRO uniform(id, what) AS
  (hash(concat(id, ' {seed} ', what)) % 4503599627370496 + 0.5) / 4503599627370496;

-- By the transform of Box and Muller.
CREATE MACRO normal(id) AS
  sqrt(-2 * ln(uniform(id, 'radius'))) * cos(2 * pi() * uniform(id, 'angle'));

-- 0.67 is the third quartile of the standard normal distribution.
CREATE MACRO log_normal(id, median, quartile) AS
  CAST(ceil(exp(normal(id) * ln(quartile / median) / 0.6744897501960817) * median) AS BIGINT);

CREATE MACRO key(number) AS 'key-' || CAST(number AS BIGINT) % 100;

COPY (
  SELECT 'synth-{seed}' AS run_id, 'synth' AS purgatory, kind, operation_id, keys,
    make_timestamptz(begun) AS started_at,
    make_timestamptz(begun + CASE WHEN is_forgotten THEN timeout ELSE least(needs, timeout) END)
      AS ended_at,
    timeout / 1e6 AS timeout_s, CASE WHEN expires THEN 'expired' ELSE 'completed' END AS outcome,
    CAST(1 AS BIGINT) AS failed_tries,
    CASE WHEN NOT (expires OR is_forgotten) THEN keys[1] END AS ended_by,
    is_forgotten AS missed_trigger
  FROM (
    SELECT *, needs > timeout AS expires, CASE WHEN is_forgotten THEN ['forgotten']
      -- three different keys
      ELSE [key(first), key(first + 1 + floor(uniform(operation_id, 'second') * 49)),
        key(first + 50 + floor(uniform(operation_id, 'third') * 49))] END AS keys
    FROM (
      SELECT *, kind = 'Forgotten' AS is_forgotten,
        CASE kind WHEN 'Fetch' THEN 2000000 WHEN 'Produce' THEN 1000000 ELSE 200000 END AS timeout,
        CASE kind WHEN 'Forgotten' THEN 0 WHEN 'Join' THEN log_normal(operation_id, 200000, 400000)
          ELSE log_normal(operation_id, 20000, 60000) END AS needs,
        CASE WHEN operation_id % 4 = 0 THEN 0
          ELSE floor(uniform(operation_id, 'first') * 100) END AS first
      FROM (
        SELECT range AS operation_id,
          -- from 2026 on, around the time of the number: nearly Poisson
          1767225600000000 + CAST(floor((range + 100 * uniform(range, 'arrival')) * 40) AS BIGINT)
            AS begun,
          CASE WHEN uniform(range, 'kind') < 0.60 THEN 'Fetch'
            WHEN uniform(range, 'kind') < 0.89 THEN 'Produce'
            WHEN uniform(range, 'kind') < 0.99 THEN 'Join' ELSE 'Forgotten' END AS kind
        FROM range({count})
      )
    )
  )
) TO '{out}/operations' (FORMAT parquet, FILE_SIZE_BYTES '64MB', OVERWRITE true);

-- The checks that ended the operations; each also tried two others in vain.
COPY (
  SELECT run_id, purgatory, ended_by AS key, date_trunc('second', ended_at) AS second,
    count(*) AS checks, 3 * count(*) AS tried, count(*) AS completed, CAST(0 AS BIGINT) AS part
  FROM read_parquet('{out}/operations/*.parquet') WHERE ended_by IS NOT NULL
  GROUP BY ALL
) TO '{out}/checks' (FORMAT parquet, FILE_SIZE_BYTES '64MB', OVERWRITE true);
