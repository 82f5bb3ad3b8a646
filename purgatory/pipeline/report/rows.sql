-- The queries of DuckDB on the rows of journals, one named query after the other.
-- `purgatory.pipeline.spark` computes the same on Spark; tests compare both with a program in plain
-- Python.
--
-- Tables at first: `operations` and `checks`, the rows as purgatory.journal describes them, each
-- with its `file`. After `hours` and `largest_runs` there are `page` (start, width, count, runs),
-- the time that the page shows in `count` spans of `width`, and `shown_runs` (run_id, run), the
-- runs that it shows by themselves.
--
--     --- rule      an expression that both engines use: {its name} stands for it
--     --- view      a name for a query                --- write     a table of the report
--     --- keep      one that others read repeatedly   --- reject    a table of rows that were set apart
--     --- show      rows that the page shows; few, however large the journals are
--
-- Instants and lengths are whole microseconds (since 1970, UTC); in tables that are written,
-- instants are timestamps and lengths are seconds. A `place` is the number of a span of the page's
-- time: -1 is before the first, `count` after the last.

--- rule reason_of_operations
CASE
    WHEN run_id IS NULL THEN 'run_id is missing' WHEN purgatory IS NULL THEN 'purgatory is missing'
    WHEN kind IS NULL THEN 'kind is missing'
    WHEN operation_id IS NULL THEN 'operation_id is missing'
    WHEN keys IS NULL THEN 'keys is missing' WHEN attempts IS NULL THEN 'attempts is missing'
    WHEN missed_trigger IS NULL THEN 'missed_trigger is missing'
    WHEN has_null_key THEN 'a key is missing'
    WHEN operation_id < 0 THEN 'operation_id is negative'
    WHEN outcome NOT IN ('completed', 'expired', 'cancelled') THEN 'unknown outcome'
    WHEN ended IS NOT NULL AND outcome IS NULL THEN 'an end without an outcome'
    WHEN ended IS NULL AND outcome IS NOT NULL THEN 'an outcome without an end'
    WHEN ended IS NULL AND started IS NULL THEN 'neither start nor end'
    WHEN started < 0 OR started >= 253402300800000000
    THEN 'started_at is not between the years 1970 and 9999'
    WHEN ended < 0 OR ended >= 253402300800000000
    THEN 'ended_at is not between the years 1970 and 9999'
    WHEN ended < started THEN 'ended before it started'
    WHEN isnan(timeout_s) OR timeout_s < 0 OR timeout_s = CAST('infinity' AS DOUBLE)
    THEN 'timeout_s is no number of seconds'
  END

--- rule reason_of_checks
CASE
    WHEN run_id IS NULL THEN 'run_id is missing' WHEN purgatory IS NULL THEN 'purgatory is missing'
    WHEN key IS NULL THEN 'key is missing' WHEN second IS NULL THEN 'second is missing'
    WHEN checks IS NULL THEN 'checks is missing'
    WHEN tried IS NULL THEN 'tried is missing' WHEN completed IS NULL THEN 'completed is missing'
    WHEN part IS NULL THEN 'part is missing'
    WHEN instant < 0 OR instant >= 253402300800000000
    THEN 'second is not between the years 1970 and 9999'
    WHEN least(checks, tried, completed) < 0 THEN 'a negative count'
    WHEN completed > tried THEN 'more completed than tried'
  END

--- rule better_operation
-- Which of several copies of an operation counts: the one with the most columns filled; among
-- equals, the one that sorts last.
CASE WHEN started IS NULL THEN 0 ELSE 1 END + CASE WHEN ended IS NULL THEN 0 ELSE 1 END
  + CASE WHEN timeout_s IS NULL THEN 0 ELSE 1 END
  + CASE WHEN outcome IS NULL THEN 0 ELSE 1 END + CASE WHEN ended_by IS NULL THEN 0 ELSE 1 END DESC,
  purgatory DESC, kind DESC, array_join(keys, chr(0)) DESC, started DESC NULLS LAST,
      ended DESC NULLS LAST,
  timeout_s DESC NULLS LAST, outcome DESC NULLS LAST, attempts DESC, ended_by DESC NULLS LAST,
      missed_trigger DESC

--- rule better_check
completed DESC, tried DESC, checks DESC

--- view judged_operations
SELECT *, {reason_of_operations} AS reason
FROM (
  SELECT *, epoch_us(started_at) AS started, epoch_us(ended_at) AS ended,
      list_count(keys) < len(keys) AS has_null_key FROM operations
)

--- view judged_checks
SELECT *, {reason_of_checks} AS reason FROM (SELECT *, epoch_us(second) AS instant FROM checks)

--- view copied
SELECT run_id, operation_id FROM judged_operations WHERE reason IS NULL
    GROUP BY run_id, operation_id HAVING count(*) > 1

--- keep accepted_operations
SELECT a.* FROM judged_operations a ANTI
    JOIN copied c ON a.run_id = c.run_id AND a.operation_id = c.operation_id WHERE reason IS NULL
UNION ALL
SELECT * EXCLUDE (number) FROM (
  SELECT a.*, row_number() OVER (PARTITION BY a.run_id, a.operation_id ORDER BY {better_operation})
      AS number
  FROM judged_operations a SEMI JOIN copied c ON a.run_id = c.run_id
      AND a.operation_id = c.operation_id WHERE reason IS NULL
) WHERE number = 1

--- keep accepted_checks
SELECT purgatory, key, instant, checks, tried, completed FROM (
  SELECT *, row_number() OVER (PARTITION BY run_id, purgatory, key, instant, part
      ORDER BY {better_check}) AS number
  FROM judged_checks WHERE reason IS NULL
) WHERE number = 1

--- keep runs
SELECT run_id, max(operation_id) + 1 AS ids, count(*) AS operations,
    min(least(started, ended)) AS earliest, max(greatest(started, ended)) AS latest
FROM accepted_operations GROUP BY run_id

--- show hours
-- What happened in each hour since 1970: what "_window" chooses the page's time by.
SELECT instant // 3600000000 AS hour, count(*) AS events, min(instant) AS first,
    max(instant) AS last FROM (
  SELECT started AS instant FROM accepted_operations WHERE started IS NOT NULL
  UNION ALL SELECT ended FROM accepted_operations WHERE ended IS NOT NULL
) GROUP BY instant // 3600000000 ORDER BY hour

--- show largest_runs
SELECT run_id, operations FROM runs ORDER BY operations DESC, run_id LIMIT 8

--- keep spans
-- An operation without a start waited from the first moment of its run, one without an end until
-- the last. Both instants have a span of the page's time: -1 is before the first, "count" after the
-- last.
SELECT s.*, coalesce(h.run, p.runs) AS run,
  CASE WHEN since < p.start THEN -1 ELSE least((since - p.start) // p.width,
      p.count) END AS begun_in,
  CASE WHEN till < p.start THEN -1 ELSE least((till - p.start) // p.width, p.count) END AS ended_in
FROM (
  SELECT a.run_id, purgatory, kind, keys, started, ended, timeout_s, outcome, missed_trigger,
    coalesce(started, earliest) AS since, coalesce(ended, latest) AS till
  FROM accepted_operations a JOIN runs r ON a.run_id = r.run_id
) s CROSS JOIN page p LEFT JOIN shown_runs h ON s.run_id = h.run_id

--- write outcomes
SELECT purgatory, kind, make_timestamptz(minute * 60000000) AS minute, started, completed, expired,
    cancelled,
  expired / nullif(completed + expired + cancelled, 0) AS expiry_rate,
  wait_p50 / 1000000 AS wait_p50, wait_p90 / 1000000 AS wait_p90, wait_p99 / 1000000 AS wait_p99,
      wait_p999 / 1000000 AS wait_p999,
  wait_max / 1000000 AS wait_max
FROM (
  SELECT purgatory, kind, minute, CAST(sum(starts) AS BIGINT) AS started,
      count(CASE WHEN outcome = 'completed' THEN 1 END) AS completed,
    count(CASE WHEN outcome = 'expired' THEN 1 END) AS expired,
        count(CASE WHEN outcome = 'cancelled' THEN 1 END) AS cancelled,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY wait) AS wait_p50,
        percentile_cont(0.9) WITHIN GROUP (ORDER BY wait) AS wait_p90,
    percentile_cont(0.99) WITHIN GROUP (ORDER BY wait) AS wait_p99,
        percentile_cont(0.999) WITHIN GROUP (ORDER BY wait) AS wait_p999,
    max(wait) AS wait_max
  FROM (
    SELECT purgatory, kind, till // 60000000 AS minute, 0 AS starts,
        outcome, CASE WHEN started IS NOT NULL THEN till - since END AS wait
    FROM spans WHERE ended IS NOT NULL
    UNION ALL
    SELECT purgatory, kind, since // 60000000, count(*), NULL, NULL FROM spans
        WHERE started IS NOT NULL
    GROUP BY purgatory, kind, since // 60000000
  ) GROUP BY purgatory, kind, minute
)

--- keep cube
-- How many operations of each purgatory, kind and run began and ended in which span, waited for how
-- long, and ended how. What the page shows by time and by length, and the counts of each kind, are
-- sums of this.
SELECT purgatory, kind, run, begun_in, ended_in, outcome, missed_trigger,
    started IS NOT NULL AS has_start, ended IS NOT NULL AS has_end,
  step_of(wait) AS wait_step, step_of(late) AS late_step,
  count(*) AS operations, min(timeout_s) AS timeout_min_s, max(timeout_s) AS timeout_max_s
FROM (
  SELECT *, CASE WHEN started IS NOT NULL THEN greatest(till - since, 1) END AS wait,
    CASE WHEN started IS NOT NULL AND outcome = 'expired' AND timeout_s IS NOT NULL
      THEN greatest(till - since - CAST(round(least(timeout_s * 1000000, 1e18)) AS BIGINT), 1) END
          AS late
  FROM spans
) GROUP BY ALL

--- write keys
SELECT purgatory, key, CAST(sum(operations) AS BIGINT) AS operations,
    CAST(sum(checks) AS BIGINT) AS checks, CAST(sum(tried) AS BIGINT) AS tried,
  CAST(sum(completed) AS BIGINT) AS completed, CAST(sum(missed) AS BIGINT) AS missed_triggers,
      CAST(sum(tried) - sum(completed) AS BIGINT) AS false_wakeups
FROM (
  SELECT purgatory, unnest(array_distinct(keys)) AS key, 1 AS operations, 0 AS checks, 0 AS tried,
      0 AS completed, CAST(missed_trigger AS INT) AS missed
  FROM spans
  UNION ALL
  SELECT purgatory, key, 0, checks, tried, completed, 0 FROM accepted_checks
) GROUP BY purgatory, key

--- keep seconds
-- What changed in each second, in the order of its events; starts come before ends.
SELECT *, lead(second) OVER (PARTITION BY purgatory ORDER BY second) AS next,
  sum(change) OVER (PARTITION BY purgatory
      ORDER BY second ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS after
FROM (
  SELECT purgatory, second, sum(delta) AS change,
      sum(delta * (1000000 - instant % 1000000)) AS weight, max(so_far) AS peak
  FROM (
    SELECT *, sum(delta) OVER (PARTITION BY purgatory, second
        ORDER BY instant, delta DESC ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS so_far
    FROM (
      SELECT purgatory, since AS instant, since // 1000000 AS second, 1 AS delta FROM spans
      UNION ALL SELECT purgatory, till, till // 1000000, -1 FROM spans
    )
  ) GROUP BY purgatory, second
)

--- write pending
SELECT purgatory, make_timestamptz(second * 1000000) AS second, CAST(1 AS BIGINT) AS seconds,
  CAST(after - change + greatest(peak, 0) AS BIGINT) AS pending_max,
      CAST(after - change + weight / 1000000 AS DOUBLE) AS pending_mean FROM seconds
UNION ALL
SELECT purgatory, make_timestamptz((second + 1) * 1000000), CAST(next - second - 1 AS BIGINT),
    CAST(after AS BIGINT), CAST(after AS DOUBLE)
FROM seconds WHERE after > 0 AND next - second > 1

--- keep waits
-- How many operations waited how long, of all (as run -1) and, if there are several, of each run;
-- those whose start is not known are left out.
SELECT purgatory, kind, CAST(-1 AS INT) AS run, till - since AS wait, count(*) AS operations,
  count(CASE WHEN outcome = 'completed' THEN 1 END) AS ends
FROM spans WHERE started IS NOT NULL GROUP BY purgatory, kind, till - since
UNION ALL
SELECT purgatory, kind, run, till - since, count(*),
    count(CASE WHEN outcome = 'completed' THEN 1 END)
FROM spans CROSS JOIN (SELECT runs FROM page) p WHERE started IS NOT NULL AND runs > 1
    GROUP BY purgatory, kind, run, till - since

--- keep curve
-- Which share would still be waiting after each wait that occurred, after Kaplan and Meier (1958):
-- the product of 1 - ends / at_risk, as a sum of logarithms, which is more exact. An operation that
-- expired, was cancelled or has no end counts as long as it waited. The standard error is
-- Greenwood's (1926).
SELECT purgatory, kind, run, wait, at_risk, CASE WHEN at_risk > ends THEN exp(logarithm)
    ELSE 0.0 END AS expiry_rate,
  CASE WHEN at_risk > ends THEN exp(logarithm) * sqrt(variance) END AS standard_error
FROM (
  SELECT *, sum(CASE WHEN at_risk > ends THEN ln(1 + -ends / at_risk) ELSE CAST(0 AS DOUBLE) END)
      OVER up AS logarithm,
    sum(CASE WHEN at_risk > ends THEN ends / (CAST(at_risk AS DOUBLE) * (at_risk - ends))
        ELSE CAST(0 AS DOUBLE) END) OVER up AS variance
  FROM (
    SELECT *, CAST(sum(operations) OVER (PARTITION BY purgatory, kind, run ORDER BY wait DESC
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS BIGINT) AS at_risk
    FROM waits
  ) WINDOW up AS (PARTITION BY purgatory, kind, run
      ORDER BY wait ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
)

--- keep curves
-- The curves at timeouts of three digits, those of single runs of two: of each such timeout the
-- last point.
SELECT purgatory, kind, run, timeout / 1000000 AS timeout_s, at_risk, expiry_rate, standard_error
    FROM (
  SELECT *, lead(timeout) OVER (PARTITION BY purgatory, kind, run ORDER BY wait) AS next
  FROM (
    SELECT *, (wait + unit - 1) // unit * unit AS timeout
    FROM (
      SELECT *, CAST(power(10, greatest(length(CAST(wait AS STRING)) - CASE WHEN run < 0 THEN 3
          ELSE 2 END, 0)) AS BIGINT) AS unit
      FROM curve
    )
  )
) WHERE next IS NULL OR next <> timeout

--- keep answers
-- The least timeouts that would have let 1 % and 0.1 % expire, and how far the curve reaches.
SELECT purgatory, kind, max(wait) / 1000000 AS longest_wait_s,
    min(expiry_rate) AS least_expiry_rate,
  max(CASE WHEN last THEN standard_error END) AS its_standard_error,
  min(CASE WHEN expiry_rate <= 0.01 + 1e-12 THEN wait END) / 1000000 AS one_percent,
  min(CASE WHEN expiry_rate <= 0.001 + 1e-12 THEN wait END) / 1000000 AS one_per_mille
FROM (SELECT *, wait = max(wait) OVER (PARTITION BY purgatory, kind) AS last FROM curve
    WHERE run < 0) GROUP BY purgatory, kind

--- reject rejected_operations
SELECT run_id, purgatory, kind, operation_id, keys, started_at, ended_at, timeout_s, outcome,
    attempts, ended_by, missed_trigger, reason, file
FROM judged_operations WHERE reason IS NOT NULL

--- reject rejected_checks
SELECT run_id, purgatory, key, second, checks, tried, completed, part, reason, file
    FROM judged_checks WHERE reason IS NOT NULL

--- keep counted
-- The rows of each folder by why they were rejected (NULL: they were not), and how many of them are
-- copies of others.
SELECT 'operations' AS folder, reason, count(*) AS rows,
  CASE WHEN reason IS NULL THEN count(*) - (SELECT count(*) FROM accepted_operations)
      ELSE 0 END AS copies
FROM judged_operations GROUP BY reason
UNION ALL
SELECT 'checks', reason, count(*), CASE WHEN reason IS NULL
    THEN count(*) - (SELECT count(*) FROM accepted_checks) ELSE 0 END
FROM judged_checks GROUP BY reason

--- keep balance
-- Sums that have to be equal, or the report has a defect.
SELECT 'ends in outcomes' AS what, (SELECT sum(completed + expired + cancelled)
    FROM outcomes) AS found,
  (SELECT count(*) FROM accepted_operations WHERE ended IS NOT NULL) AS expected
UNION ALL SELECT 'starts in outcomes', (SELECT sum(started) FROM outcomes),
    (SELECT count(*) FROM accepted_operations WHERE started IS NOT NULL)
UNION ALL SELECT 'operations in survival', (SELECT sum(operations) FROM waits WHERE run < 0),
  (SELECT count(*) FROM accepted_operations WHERE started IS NOT NULL)
UNION ALL SELECT 'tries in keys', (SELECT sum(tried) FROM keys),
    (SELECT sum(tried) FROM accepted_checks)
UNION ALL SELECT 'changes of pending', (SELECT sum(change) FROM seconds), 0

--- show peaks
-- When the most were pending, in each purgatory.
SELECT purgatory, second, pending_max FROM (
  SELECT *, row_number() OVER (PARTITION BY purgatory ORDER BY pending_max DESC, second) AS number
      FROM pending
) WHERE number = 1 ORDER BY purgatory

--- show points
-- Pending operations in each span of the page's time: the maximum, and the sum of the means of its
-- seconds.
SELECT purgatory, place, max(pending_max) AS most,
  sum(pending_mean * (least(since + seconds * 1000000, start + (place + 1) * width)
      - greatest(since, start + place * width)) / 1000000) AS area
FROM (
  SELECT *, unnest(generate_series(begins_in, ends_in)) AS place FROM (
    SELECT *, greatest((since - start) // width, 0) AS begins_in,
        least((since + seconds * 1000000 - 1 - start) // width, count - 1) AS ends_in
    FROM (SELECT purgatory, epoch_us(second) AS since, seconds, pending_max, pending_mean
        FROM pending) CROSS JOIN page
    WHERE since + seconds * 1000000 > start AND since < start + width * count
  )
) WHERE pending_max > 0 GROUP BY purgatory, place ORDER BY purgatory, place

--- keep hot_keys
-- A key is as hot as its checks have tried operations.
SELECT * FROM keys WHERE tried > 0 ORDER BY tried DESC, operations DESC, purgatory, key LIMIT 100

--- keep missed_keys
SELECT * FROM keys WHERE missed_triggers > 0 ORDER BY missed_triggers DESC, purgatory, key LIMIT 100

--- show hot_keys_in_order
SELECT * FROM hot_keys ORDER BY tried DESC, operations DESC, purgatory, key

--- show missed_keys_in_order
SELECT * FROM missed_keys ORDER BY missed_triggers DESC, purgatory, key

--- show hot_times
SELECT purgatory, key, place, CAST(sum(tried) AS BIGINT) AS tried,
    CAST(sum(completed) AS BIGINT) AS completed FROM (
  SELECT c.purgatory, c.key, c.tried, c.completed,
    -- Checks are counted by the second, so the first span may begin within one.
    CASE WHEN instant + 1000000 <= start THEN -1
        ELSE greatest(least((instant - start) // width, count), 0) END AS place
  FROM accepted_checks c JOIN hot_keys h ON c.purgatory = h.purgatory AND c.key = h.key
      CROSS JOIN page
) GROUP BY purgatory, key, place ORDER BY purgatory, key, place

--- show missed_times
SELECT m.purgatory, m.key, place, count(*) AS missed
FROM (SELECT purgatory, unnest(array_distinct(keys)) AS key, ended_in AS place FROM spans
    WHERE missed_trigger) t
JOIN missed_keys m ON t.purgatory = m.purgatory AND t.key = m.key GROUP BY m.purgatory, m.key, place
    ORDER BY m.purgatory, m.key, place

--- show worst_minutes
SELECT * FROM outcomes ORDER BY expired DESC, minute, purgatory, kind LIMIT 50
