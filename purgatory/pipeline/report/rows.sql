-- The queries on the rows of journals, one named query after the other, for DuckDB and Spark: see
-- `_queries.on_spark` and `_duckdb.MACROS` for the words that differ. Tests compare both engines with
-- a program in plain Python.
--
-- Tables at first: `operations` and `checks`, the rows as purgatory.journal describes them, each
-- with its `file`. After `census` and `census_of_checks`, {copies} and {rejected}, and {copies_of_checks}
-- and {rejected_checks}, are known: queries of them read no rows where there are none.
-- Once `runs` and `hours` are there, {start}, {width} and {count} are known: the
-- page shows the time in `count` spans of `width`; and {runs}, how many runs it shows by themselves.
--
--     --- rule    an expression: {its name} stands for it
--     --- view    a name for a query
--     --- rows    a row for each row of a journal: DuckDB keeps them, Spark reads them anew
--     --- keep    sums that others read repeatedly: kept by both engines
--     --- small   a few sums, however large the journals are: Spark collects them, and DuckDB
--                 computes what has no other sources
--     --- small     sums of small tables, which DuckDB computes on both engines
--     --- write   a table of the report
--     --- reject  a table of rows that were set apart
--     --- show    rows that the page shows; few, too
--     --- spark   the query of this name in Spark's own words, where the same text would cost it more
--
-- Instants and lengths are whole microseconds (since 1970, UTC); in tables that are written,
-- instants are timestamps and lengths are seconds. A `place` is the number of a span of the page's
-- time: -1 is before the first, `count` after the last.

--- rule reason_of_operations
CASE
    WHEN run_id IS NULL THEN 'run_id is missing' WHEN purgatory IS NULL THEN 'purgatory is missing'
    WHEN kind IS NULL THEN 'kind is missing'
    WHEN operation_id IS NULL THEN 'operation_id is missing'
    WHEN keys IS NULL THEN 'keys is missing' WHEN failed_tries IS NULL THEN 'failed_tries is missing'
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
    WHEN NOT is_valid_utf8(concat_ws(chr(0), run_id, purgatory, kind, outcome, ended_by,
      array_join(keys, chr(0)))) THEN 'a text is not UTF-8'
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
    WHEN NOT is_valid_utf8(concat_ws(chr(0), run_id, purgatory, key)) THEN 'a text is not UTF-8'
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
  timeout_s DESC NULLS LAST, outcome DESC NULLS LAST, failed_tries DESC, ended_by DESC NULLS LAST,
      missed_trigger DESC

--- rule better_check
completed DESC, tried DESC, checks DESC

--- view judged_operations
SELECT *, {reason_of_operations} AS reason
FROM (
  SELECT *, unix_micros(started_at) AS started, unix_micros(ended_at) AS ended,
      list_count(keys) < size(keys) AS has_null_key FROM operations
)

--- view judged_checks
SELECT *, {reason_of_checks} AS reason FROM (SELECT *, unix_micros(second) AS instant FROM checks)

--- view blocks
-- The first pass over the rows: by file, run, block of 32 ids, and the hours of both instants. A bit
-- for each id tells copies without a shuffle of all ids: ids 0, 1, 1, 5 are 4 rows with bits
-- 0b100011, so there is a copy.
SELECT file, reason, run_id, block, begun, finished, count(*) AS operations, bit_or(bit) AS bits,
  max(operation_id) AS last_id, count(started) AS starts, count(ended) AS ends,
  min(started) AS first_start, max(started) AS last_start, min(ended) AS first_end,
  max(ended) AS last_end
FROM (
  SELECT file, reason, CASE WHEN reason IS NULL THEN run_id END AS run_id,
    CASE WHEN reason IS NULL THEN operation_id // 32 END AS block,
    CASE WHEN reason IS NULL THEN started // 3600000000 END AS begun,
    CASE WHEN reason IS NULL THEN ended // 3600000000 END AS finished,
    CASE WHEN reason IS NULL
      THEN CAST(1 AS BIGINT) << CAST(operation_id % 32 AS INT) END AS bit,
    operation_id, started, ended
  FROM judged_operations
) GROUP BY file, reason, run_id, block, begun, finished

--- small census
-- The sums of the blocks: of each file, of each reason, of each hour, and of each run. If there are
-- copies, the sums of hours and runs count them, and are made again: see `recounted`.
SELECT file, reason, begun, finished, run_id, what, CAST(sum(operations) AS BIGINT) AS operations,
  CAST(sum(copies) AS BIGINT) AS copies, max(last_id) AS last_id, CAST(sum(starts) AS BIGINT) AS starts,
  CAST(sum(ends) AS BIGINT) AS ends, min(first_start) AS first_start,
  max(last_start) AS last_start, min(first_end) AS first_end, max(last_end) AS last_end
FROM (
  SELECT file, reason, begun, finished, run_id,
    CASE WHEN grouping(file) = 0 THEN 'file' WHEN grouping(reason) = 0 THEN 'reason'
      WHEN grouping(begun) = 0 THEN 'begun' WHEN grouping(finished) = 0 THEN 'finished'
      ELSE 'run' END AS what,
    sum(operations) AS operations,
    CASE WHEN grouping(block) = 0 AND run_id IS NOT NULL
      THEN sum(operations) - bit_count(bit_or(bits)) ELSE 0 END AS copies,
    max(last_id) AS last_id, sum(starts) AS starts, sum(ends) AS ends,
    min(first_start) AS first_start, max(last_start) AS last_start, min(first_end) AS first_end,
    max(last_end) AS last_end
  FROM blocks
  GROUP BY GROUPING SETS ((file), (reason), (begun), (finished), (run_id, block))
) GROUP BY file, reason, begun, finished, run_id, what

--- small copied
-- The blocks with copies of operations.
SELECT run_id, block FROM blocks WHERE reason IS NULL AND {copies} > 0 GROUP BY run_id, block
    HAVING sum(operations) > bit_count(bit_or(bits))

--- rows compared
-- The best row of each operation in such a block.
SELECT * EXCLUDE (number) FROM (
  SELECT a.*, row_number() OVER (PARTITION BY a.run_id, a.operation_id ORDER BY {better_operation})
      AS number
  FROM judged_operations a SEMI JOIN copied c ON a.run_id = c.run_id
      AND a.operation_id // 32 = c.block WHERE reason IS NULL
) WHERE number = 1

--- rows accepted_operations
SELECT a.* FROM judged_operations a ANTI JOIN copied c
    ON a.run_id = c.run_id AND a.operation_id // 32 = c.block WHERE reason IS NULL
UNION ALL
SELECT * FROM compared

--- small recounted
-- The sums of hours and runs, where there are copies.
SELECT run_id, started // 3600000000 AS begun, ended // 3600000000 AS finished,
  count(*) AS operations, max(operation_id) AS last_id, count(started) AS starts,
  count(ended) AS ends, min(started) AS first_start, max(started) AS last_start,
  min(ended) AS first_end, max(ended) AS last_end
FROM accepted_operations WHERE {copies} > 0
GROUP BY run_id, started // 3600000000, ended // 3600000000

--- small runs
-- The eight largest runs have a number, `run`; all others share the next.
SELECT *, CAST(least(row_number() OVER (ORDER BY operations DESC, run_id) - 1, 8) AS INT) AS run
FROM (
  SELECT run_id, max(last_id) + 1 AS ids, CAST(sum(operations) AS BIGINT) AS operations,
    min(least(first_start, first_end)) AS earliest, max(greatest(last_start, last_end)) AS latest
  FROM (
    SELECT run_id, last_id, operations, first_start, first_end, last_start, last_end FROM census
    WHERE what = 'run' AND run_id IS NOT NULL AND {copies} = 0
    UNION ALL
    SELECT run_id, last_id, operations, first_start, first_end, last_start, last_end
    FROM recounted
  ) GROUP BY run_id
)

--- small hours
-- What happened in each hour since 1970: what `window_of` chooses the page's time by.
SELECT hour, CAST(sum(starts) AS BIGINT) AS starts, CAST(sum(ends) AS BIGINT) AS ends,
    min(first) AS first, max(last) AS last
FROM (
  SELECT begun AS hour, starts, 0 AS ends, first_start AS first, last_start AS last FROM census
  WHERE what = 'begun' AND {copies} = 0
  UNION ALL SELECT finished, 0, ends, first_end, last_end FROM census
  WHERE what = 'finished' AND {copies} = 0
  UNION ALL SELECT begun, starts, 0, first_start, last_start FROM recounted
  UNION ALL SELECT finished, 0, ends, first_end, last_end FROM recounted
) WHERE hour IS NOT NULL GROUP BY hour

--- view blocks_of_checks
-- The first pass over the checks, in the same way, by 32 seconds of a key.
SELECT file, reason, run_id, purgatory, key, part, block, count(*) AS checks, bit_or(bit) AS bits
FROM (
  SELECT file, reason, CASE WHEN reason IS NULL THEN run_id END AS run_id,
    CASE WHEN reason IS NULL THEN purgatory END AS purgatory,
    CASE WHEN reason IS NULL THEN key END AS key, CASE WHEN reason IS NULL THEN part END AS part,
    CASE WHEN reason IS NULL THEN instant // 32000000 END AS block,
    CASE WHEN reason IS NULL
      THEN CAST(1 AS BIGINT) << CAST(instant // 1000000 % 32 AS INT) END AS bit
  FROM judged_checks
) GROUP BY file, reason, run_id, purgatory, key, part, block

--- small census_of_checks
SELECT file, reason, what, CAST(sum(checks) AS BIGINT) AS checks,
  CAST(sum(copies) AS BIGINT) AS copies
FROM (
  SELECT file, reason, CASE WHEN grouping(file) = 0 THEN 'file' WHEN grouping(reason) = 0 THEN
      'reason' ELSE 'key' END AS what,
    sum(checks) AS checks,
    CASE WHEN grouping(block) = 0 AND run_id IS NOT NULL
      THEN sum(checks) - bit_count(bit_or(bits)) ELSE 0 END AS copies
  FROM blocks_of_checks
  GROUP BY GROUPING SETS ((file), (reason), (run_id, purgatory, key, part, block))
) GROUP BY file, reason, what

--- small copied_checks
SELECT run_id, purgatory, key, part, block FROM blocks_of_checks
WHERE reason IS NULL AND {copies_of_checks} > 0
GROUP BY run_id, purgatory, key, part, block HAVING sum(checks) > bit_count(bit_or(bits))

--- rows compared_checks
SELECT purgatory, key, instant, checks, tried, completed FROM (
  SELECT a.*, row_number() OVER (PARTITION BY a.run_id, a.purgatory, a.key, a.instant, a.part
      ORDER BY {better_check}) AS number
  FROM judged_checks a SEMI JOIN copied_checks c ON a.run_id = c.run_id
      AND a.purgatory = c.purgatory AND a.key = c.key AND a.part = c.part
      AND a.instant // 32000000 = c.block WHERE reason IS NULL
) WHERE number = 1

--- rows accepted_checks
SELECT a.purgatory, a.key, instant, a.checks, tried, completed
FROM judged_checks a ANTI JOIN copied_checks c ON a.run_id = c.run_id AND a.purgatory = c.purgatory
    AND a.key = c.key AND a.part = c.part AND a.instant // 32000000 = c.block
WHERE reason IS NULL
UNION ALL
SELECT * FROM compared_checks

--- small recounted_checks
SELECT count(*) AS checks FROM accepted_checks WHERE {copies_of_checks} > 0

--- small counted_operations
-- The rows by why they were rejected (NULL: they were not), and how many of them are copies of
-- others.
SELECT reason, operations AS rows, CASE WHEN reason IS NULL AND {copies} > 0
    THEN operations - (SELECT CAST(sum(operations) AS BIGINT) FROM recounted) ELSE 0 END AS copies
FROM census WHERE what = 'reason'

--- small counted_checks
SELECT reason, checks AS rows, CASE WHEN reason IS NULL AND {copies_of_checks} > 0
    THEN checks - (SELECT checks FROM recounted_checks) ELSE 0 END AS copies
FROM census_of_checks WHERE what = 'reason'

--- rows spans
-- An operation without a start waited from the first moment of its run, one without an end until
-- the last.
SELECT a.run_id, purgatory, kind, keys, started, ended, timeout_s, outcome, ended_by, missed_trigger, run,
  coalesce(started, earliest) AS since, coalesce(ended, latest) AS till
FROM accepted_operations a JOIN runs r ON a.run_id = r.run_id

--- write outcomes
SELECT purgatory, kind, timestamp_micros(minute * 60000000) AS minute, started, completed, expired,
    cancelled,
  expired / nullif(completed + expired + cancelled, 0) AS expiry_rate,
  element_at(waits, 1) / 1000000 AS wait_p50, element_at(waits, 2) / 1000000 AS wait_p90,
  element_at(waits, 3) / 1000000 AS wait_p99, element_at(waits, 4) / 1000000 AS wait_p999,
  wait_max / 1000000 AS wait_max
FROM (
  SELECT purgatory, kind, minute, CAST(sum(starts) AS BIGINT) AS started,
      count(CASE WHEN outcome = 'completed' THEN 1 END) AS completed,
    count(CASE WHEN outcome = 'expired' THEN 1 END) AS expired,
        count(CASE WHEN outcome = 'cancelled' THEN 1 END) AS cancelled,
    percentile(wait, [0.5, 0.9, 0.99, 0.999]) AS waits, max(wait) AS wait_max
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

--- view placed
-- The spans of the page's time in which operations began and ended, and the first two digits and
-- the power of ten of their lengths, by which `step_of` has steps.
SELECT *, wait * 10 // CAST(power(10, wait_power) AS BIGINT) AS wait_lead,
  late * 10 // CAST(power(10, late_power) AS BIGINT) AS late_lead
FROM (
  SELECT *, length(CAST(wait AS STRING)) - 1 AS wait_power,
    length(CAST(late AS STRING)) - 1 AS late_power
  FROM (
    SELECT purgatory, kind, run, outcome, missed_trigger, timeout_s,
      started IS NOT NULL AS has_start, ended IS NOT NULL AS has_end,
      CASE WHEN since < {start} THEN -1
        ELSE least((since - {start}) // {width}, {count}) END AS begun_in,
      CASE WHEN till < {start} THEN -1
        ELSE least((till - {start}) // {width}, {count}) END AS ended_in,
      CASE WHEN started IS NOT NULL THEN greatest(till - since, 1) END AS wait,
      CASE WHEN started IS NOT NULL AND outcome = 'expired' AND timeout_s IS NOT NULL
        THEN greatest(till - since - CAST(round(least(timeout_s * 1000000, 1e18)) AS BIGINT), 1)
        END AS late
    FROM spans
  )
)

--- small cube
-- How many operations of each purgatory, kind and run began and ended in which span, waited for how
-- long, and ended how. What the page shows by time and by length, and the counts of each kind, are
-- sums of this.
SELECT purgatory, kind, run, begun_in, ended_in, outcome, missed_trigger, has_start, has_end,
  {wait_step} AS wait_step, {late_step} AS late_step,
  count(*) AS operations, min(timeout_s) AS timeout_min_s, max(timeout_s) AS timeout_max_s
FROM placed GROUP BY ALL

--- small limits
-- What waits of one kind did with each of its timeouts, where it has several: of at most eight
-- timeouts, each of at least 1 % of the operations. A timeout is in milliseconds; -1 is none.
SELECT purgatory, kind, timeout_ms, operations, completed, expired, cancelled FROM (
  SELECT *, count(*) OVER (PARTITION BY purgatory, kind) AS timeouts,
    sum(operations) OVER (PARTITION BY purgatory, kind) AS of_kind,
    row_number() OVER (PARTITION BY purgatory, kind ORDER BY operations DESC, timeout_ms) AS number
  FROM (
    SELECT purgatory, kind, timeout_ms, count(*) AS operations,
      count(CASE WHEN outcome = 'completed' THEN 1 END) AS completed,
      count(CASE WHEN outcome = 'expired' THEN 1 END) AS expired,
      count(CASE WHEN outcome = 'cancelled' THEN 1 END) AS cancelled
    FROM (
      SELECT purgatory, kind, outcome, CASE WHEN timeout_s IS NULL THEN -1
        ELSE CAST(round(least(timeout_s, 1e12) * 1000) AS BIGINT) END AS timeout_ms
      FROM accepted_operations
    ) GROUP BY purgatory, kind, timeout_ms
  )
) WHERE timeouts > 1 AND number <= 8 AND operations * 100 >= of_kind

--- write keys
-- A check that has an asynchronous condition run does not know whether that will be true: of the
-- operations that the checks of a key completed, those that name it count, if they are more.
SELECT purgatory, key, operations, checks, tried, completed, missed_triggers,
  greatest(tried - completed, 0) AS false_wakeups
FROM (
  SELECT purgatory, key, CAST(sum(operations) AS BIGINT) AS operations,
    CAST(sum(checks) AS BIGINT) AS checks, CAST(sum(tried) AS BIGINT) AS tried,
    CAST(greatest(sum(completed), sum(ended)) AS BIGINT) AS completed,
    CAST(sum(missed) AS BIGINT) AS missed_triggers
  FROM (
    SELECT purgatory, key, 1 AS operations, 0 AS checks, 0 AS tried, 0 AS completed,
      CASE WHEN key = ended_by AND outcome = 'completed' THEN 1 ELSE 0 END AS ended,
      CAST(missed_trigger AS INT) AS missed
    FROM (
      SELECT purgatory, outcome, ended_by, missed_trigger,
        explode(CASE WHEN size(keys) > 1 THEN array_distinct(keys) ELSE keys END) AS key
      FROM spans
    )
    UNION ALL
    SELECT purgatory, key, 0, checks, tried, completed, 0, 0 FROM accepted_checks
  ) GROUP BY purgatory, key
)

--- view seconds
-- What changed in each second, in the order of its events; starts come before ends. The code of an
-- event is twice its instant, and one more for an end.
SELECT *, lead(second) OVER (PARTITION BY purgatory ORDER BY second) AS next,
  sum(change) OVER (PARTITION BY purgatory
      ORDER BY second ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS after
FROM (
  SELECT purgatory, second, sum(delta) AS change,
      sum(delta * (1000000 - code % 2000000 // 2)) AS weight, max(so_far) AS peak
  FROM (
    SELECT *, sum(delta) OVER (PARTITION BY purgatory, second
        ORDER BY code ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS so_far
    FROM (
      SELECT purgatory, code, code // 2000000 AS second, 1 - 2 * (code % 2) AS delta
      FROM (SELECT purgatory, explode([since * 2, till * 2 + 1]) AS code FROM spans)
    )
  ) GROUP BY purgatory, second
)

--- spark seconds
-- One sorted array for each second, in place of a window over all events: of 1,000,000 operations 87
-- rows are shuffled, in place of 2,000,042.
SELECT *, lead(second) OVER (PARTITION BY purgatory ORDER BY second) AS next,
  sum(change) OVER (PARTITION BY purgatory
      ORDER BY second ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS after
FROM (
  SELECT purgatory, second, change, weight,
    aggregate(sort_array(codes), named_struct('now', 0, 'peak', CAST(NULL AS INT)),
      (s, code) -> named_struct('now', s.now + 1 - 2 * (code & 1),
        'peak', greatest(s.peak, s.now + 1 - 2 * (code & 1)))).peak AS peak
  FROM (
    SELECT purgatory, second, collect_list(code) AS codes, sum(1 - 2 * (code & 1)) AS change,
      sum((1 - 2 * (code & 1)) * (1000000 - code // 2)) AS weight
    FROM (
      SELECT purgatory, code // 2000000 AS second, CAST(code % 2000000 AS INT) AS code
      FROM (SELECT purgatory, explode([since * 2, till * 2 + 1]) AS code FROM spans)
    ) GROUP BY purgatory, second
  )
)

--- write pending
-- Seconds without events are in one row, after the one before them.
SELECT purgatory, timestamp_micros((second + quiet) * 1000000) AS second,
  CASE quiet WHEN 0 THEN 1 ELSE next - second - 1 END AS seconds,
  CAST(CASE quiet WHEN 0 THEN after - change + greatest(peak, 0) ELSE after END AS BIGINT)
      AS pending_max,
  CAST(CASE quiet WHEN 0 THEN after - change + weight / 1000000 ELSE after END AS DOUBLE)
      AS pending_mean
FROM (
  SELECT *, explode(CASE WHEN after > 0 AND next - second > 1 THEN [0, 1] ELSE [0] END) AS quiet
  FROM seconds
)

--- view waits
-- How many operations waited how long, of all (as run -1) and, if there are several, of each run;
-- those whose start is not known are left out.
SELECT purgatory, kind, CAST(-1 AS INT) AS run, till - since AS wait, count(*) AS operations,
  count(CASE WHEN outcome = 'completed' THEN 1 END) AS ends
FROM spans WHERE started IS NOT NULL GROUP BY purgatory, kind, till - since
UNION ALL
SELECT purgatory, kind, run, till - since, count(*),
    count(CASE WHEN outcome = 'completed' THEN 1 END)
FROM spans WHERE started IS NOT NULL AND {runs} > 1 GROUP BY purgatory, kind, run, till - since

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
    SELECT *, CAST(sum(operations) OVER (PARTITION BY purgatory, kind, run)
      - sum(operations) OVER (PARTITION BY purgatory, kind, run
          ORDER BY wait ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
      + operations AS BIGINT) AS at_risk
    FROM waits
  ) WINDOW up AS (PARTITION BY purgatory, kind, run
      ORDER BY wait ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
)

--- small curves
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

--- small answers
-- The least timeouts that would have let 1 % and 0.1 % expire, and how far the curve reaches.
SELECT purgatory, kind, max(at_risk) AS operations, max(wait) / 1000000 AS longest_wait_s,
    min(expiry_rate) AS least_expiry_rate,
  max(CASE WHEN last THEN standard_error END) AS its_standard_error,
  min(CASE WHEN expiry_rate <= 0.01 + 1e-12 THEN wait END) / 1000000 AS one_percent,
  min(CASE WHEN expiry_rate <= 0.001 + 1e-12 THEN wait END) / 1000000 AS one_per_mille
FROM (SELECT *, wait = max(wait) OVER (PARTITION BY purgatory, kind) AS last FROM curve
    WHERE run < 0) GROUP BY purgatory, kind

--- reject rejected_operations
SELECT run_id, purgatory, kind, operation_id, keys, started_at, ended_at, timeout_s, outcome,
    failed_tries, ended_by, missed_trigger, reason, file
FROM judged_operations WHERE reason IS NOT NULL AND {rejected} > 0

--- reject rejected_checks
SELECT run_id, purgatory, key, second, checks, tried, completed, part, reason, file
    FROM judged_checks WHERE reason IS NOT NULL AND {rejected_checks} > 0

--- small balance
-- Sums that have to be equal, or the report has a defect.
SELECT 'ends in outcomes' AS what, (SELECT sum(completed + expired + cancelled)
    FROM outcomes) AS found, (SELECT sum(ends) FROM hours) AS expected
UNION ALL SELECT 'starts in outcomes', (SELECT sum(started) FROM outcomes),
    (SELECT sum(starts) FROM hours)
UNION ALL SELECT 'tries in keys', (SELECT sum(tried) FROM keys),
    (SELECT sum(tried) FROM accepted_checks)

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
  sum(pending_mean * (least(since + seconds * 1000000, {start} + (place + 1) * {width})
      - greatest(since, {start} + place * {width})) / 1000000) AS area
FROM (
  SELECT *, explode(sequence(greatest((since - {start}) // {width}, 0),
      least((since + seconds * 1000000 - 1 - {start}) // {width}, {count} - 1))) AS place
  FROM (SELECT purgatory, unix_micros(second) AS since, seconds, pending_max, pending_mean
      FROM pending)
  WHERE since + seconds * 1000000 > {start} AND since < {start} + {width} * {count}
) WHERE pending_max > 0 GROUP BY purgatory, place ORDER BY purgatory, place

--- small hot_keys
-- A key is as hot as its checks have tried operations.
SELECT * FROM keys WHERE tried > 0 ORDER BY tried DESC, operations DESC, purgatory, key LIMIT 100

--- small missed_keys
SELECT * FROM keys WHERE missed_triggers > 0 ORDER BY missed_triggers DESC, purgatory, key LIMIT 100

--- show hot_keys_in_order
SELECT * FROM hot_keys ORDER BY tried DESC, operations DESC, purgatory, key

--- show missed_keys_in_order
SELECT * FROM missed_keys ORDER BY missed_triggers DESC, purgatory, key

--- show hot_times
SELECT purgatory, key, place, CAST(sum(tried) AS BIGINT) AS tried,
    CAST(greatest(sum(completed), sum(ended)) AS BIGINT) AS completed FROM (
  SELECT c.purgatory, c.key, c.tried, c.completed, c.ended,
    -- Checks are counted by the second, so the first span may begin within one.
    CASE WHEN instant + 1000000 <= {start} THEN -1
        ELSE greatest(least((instant - {start}) // {width}, {count}), 0) END AS place
  FROM (
    SELECT purgatory, key, instant, tried, completed, 0 AS ended FROM accepted_checks
    UNION ALL
    SELECT purgatory, ended_by, till // 1000000 * 1000000, 0, 0, 1 FROM spans
        WHERE outcome = 'completed' AND ended_by IS NOT NULL
  ) c JOIN hot_keys h ON c.purgatory = h.purgatory AND c.key = h.key
) GROUP BY purgatory, key, place ORDER BY purgatory, key, place

--- show missed_times
SELECT m.purgatory, m.key, place, count(*) AS missed
FROM (
  SELECT purgatory, explode(array_distinct(keys)) AS key, CASE WHEN till < {start} THEN -1
      ELSE least((till - {start}) // {width}, {count}) END AS place
  FROM spans WHERE missed_trigger
) t JOIN missed_keys m ON t.purgatory = m.purgatory AND t.key = m.key
GROUP BY m.purgatory, m.key, place ORDER BY m.purgatory, m.key, place

--- show worst_minutes
SELECT * FROM outcomes ORDER BY expired DESC, minute, purgatory, kind LIMIT 50
