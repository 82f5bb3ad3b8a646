-- The tables of a report, from the sums of rows that `rows.sql` defines. They are small, so this part
-- runs on DuckDB, whichever engine made them. Queries have the same roles as in `rows.sql`.
--
-- Tables at first: `cube`, `limits`, `curves`, `answers`, `runs`, `hours`, `counted_operations`,
-- `counted_checks` and `balance`; `files` (folder, file, state, reason), all files that were found;
-- and `tallies` (run_id, ended), how many operations have ended in each run that still runs or was
-- killed.

--- view kinds
SELECT purgatory, kind, operations, completed, expired, cancelled,
    operations - with_end AS without_end, operations - with_start AS without_start,
  missed_triggers, timeout_min_s, timeout_max_s
FROM (
  SELECT purgatory, kind, CAST(sum(operations) AS BIGINT) AS operations,
    CAST(sum(CASE WHEN outcome = 'completed' THEN operations ELSE 0 END) AS BIGINT) AS completed,
    CAST(sum(CASE WHEN outcome = 'expired' THEN operations ELSE 0 END) AS BIGINT) AS expired,
    CAST(sum(CASE WHEN outcome = 'cancelled' THEN operations ELSE 0 END) AS BIGINT) AS cancelled,
    CAST(sum(CASE WHEN has_end THEN operations ELSE 0 END) AS BIGINT) AS with_end,
    CAST(sum(CASE WHEN has_start THEN operations ELSE 0 END) AS BIGINT) AS with_start,
    CAST(sum(CASE WHEN missed_trigger THEN operations ELSE 0 END) AS BIGINT) AS missed_triggers,
    min(timeout_min_s) AS timeout_min_s, max(timeout_max_s) AS timeout_max_s
  FROM cube GROUP BY purgatory, kind
)

--- write timeouts
-- Operations completed only by the try at their deadline show nothing about a timeout.
SELECT purgatory, kind, operations, completed, expired, cancelled, without_end, without_start,
    missed_triggers, timeout_min_s, timeout_max_s,
  longest_wait_s, least_expiry_rate, its_standard_error, one_percent AS timeout_1_percent,
      one_per_mille AS timeout_01_percent,
  expired / nullif(completed + expired + cancelled, 0) AS expiry_rate,
  CASE WHEN one_percent IS NULL THEN 'not answerable from this data'
      ELSE 'answered' END AS answer_1_percent,
  CASE WHEN one_per_mille IS NULL THEN 'not answerable from this data'
      ELSE 'answered' END AS answer_01_percent
FROM (
  SELECT k.*, longest_wait_s, least_expiry_rate, its_standard_error,
    CASE WHEN completed > missed_triggers THEN one_percent END AS one_percent,
    CASE WHEN completed > missed_triggers THEN one_per_mille END AS one_per_mille
  FROM kinds k LEFT JOIN answers a ON k.purgatory = a.purgatory AND k.kind = a.kind
)

--- write survival
SELECT purgatory, kind, timeout_s, at_risk, expiry_rate, standard_error FROM curves WHERE run < 0

--- show curves_of_runs
-- Where a purgatory and kind has operations of several runs.
SELECT c.* FROM curves c SEMI JOIN (
  SELECT purgatory, kind FROM curves WHERE run >= 0
      GROUP BY purgatory, kind HAVING count(DISTINCT run) > 1
) s ON c.purgatory = s.purgatory AND c.kind = s.kind WHERE run >= 0
    ORDER BY purgatory, kind, run, timeout_s

--- view by_folder
-- The counts, and a line without rows for each folder.
SELECT 'operations' AS folder, reason, rows, copies FROM counted_operations
    UNION ALL SELECT 'operations', NULL, 0, 0
    UNION ALL SELECT 'checks', reason, rows, copies FROM counted_checks
    UNION ALL SELECT 'checks', NULL, 0, 0

--- write reconciliation
-- The account of every file and every row that was read.
SELECT place, folder, what, reason, CAST(count AS BIGINT) AS count FROM (
  SELECT CASE folder WHEN 'operations' THEN 0
      ELSE 20 END + place AS place, folder, what, reason, count FROM (
    SELECT 1 AS place, f.folder, 'files' AS what, NULL AS reason, count(file) AS count
    FROM (SELECT 'operations' AS folder UNION ALL SELECT 'checks') f
        LEFT JOIN files g ON f.folder = g.folder AND state IN ('files', 'files unreadable')
    GROUP BY f.folder
    UNION ALL
    SELECT 2, folder, state, concat(file, ': ', reason), 1 FROM files WHERE reason IS NOT NULL
  )
  UNION ALL
  SELECT CASE folder WHEN 'operations' THEN 0 ELSE 20 END + place, folder, what, reason, count
      FROM (
    SELECT 4 AS place, folder, 'rows read' AS what, NULL AS reason, coalesce(sum(rows), 0) AS count
        FROM by_folder GROUP BY folder
    UNION ALL SELECT 5, folder, 'rows rejected', reason, rows FROM by_folder WHERE reason IS NOT NULL
    UNION ALL SELECT 6, folder, 'duplicates dropped', NULL, coalesce(sum(copies), 0) FROM by_folder
        GROUP BY folder
    UNION ALL SELECT 7, folder, 'rows accepted', NULL,
        coalesce(sum(rows - copies) FILTER (reason IS NULL), 0) FROM by_folder GROUP BY folder
  )
  UNION ALL SELECT 8, 'operations', 'ids missing',
      'dropped, lost, rejected, unreadable or too old to keep', coalesce(sum(ids - operations), 0)
      FROM runs
  UNION ALL SELECT 9, 'operations', 'ids missing',
      'the last of a run that was killed, is in progress, or could not write them',
    coalesce(sum(greatest(t.ended - coalesce(ids, 0), 0)), 0)
        FROM tallies t LEFT JOIN runs r ON t.run_id = r.run_id
)

--- show balance_of_all
SELECT * FROM balance
UNION ALL SELECT 'operations in survival', (SELECT sum(operations) FROM answers),
    (SELECT sum(starts) FROM hours)
UNION ALL SELECT 'rows of timeouts', (SELECT sum(operations) FROM timeouts),
    (SELECT sum(rows - copies) FROM counted_operations WHERE reason IS NULL)

--- show timeline
-- The starts and ends in each span. `begun` and `finished` also count operations whose start or
-- end was not written.
SELECT purgatory, kind, run, place, CAST(sum(begun) AS BIGINT) AS begun,
    CAST(sum(finished) AS BIGINT) AS finished,
  CAST(sum(started) AS BIGINT) AS started,
      CAST(coalesce(sum(finished) FILTER (outcome = 'completed'), 0) AS BIGINT) AS completed,
  CAST(coalesce(sum(finished) FILTER (outcome = 'expired'), 0) AS BIGINT) AS expired,
  CAST(coalesce(sum(finished) FILTER (outcome = 'cancelled'), 0) AS BIGINT) AS cancelled,
  CAST(coalesce(sum(finished) FILTER (missed), 0) AS BIGINT) AS missed
FROM (
  SELECT purgatory, kind, run, begun_in AS place, operations AS begun,
      0 AS finished, CASE WHEN has_start THEN operations ELSE 0 END AS started,
    NULL AS outcome, false AS missed FROM cube
  UNION ALL
  SELECT purgatory, kind, run, ended_in, 0, operations, 0, outcome, missed_trigger AND has_end
      FROM cube
) GROUP BY purgatory, kind, run, place ORDER BY purgatory, kind, run, place

--- view begun
SELECT *, CASE WHEN begun_in < {count} THEN begun_in ELSE -1 END AS place
    FROM cube WHERE has_start

--- show wait_steps
SELECT purgatory, kind, run, place, wait_step AS step,
    CAST(coalesce(sum(operations) FILTER (outcome = 'completed'), 0) AS BIGINT) AS completed,
  CAST(coalesce(sum(operations) FILTER (outcome <> 'completed'), 0) AS BIGINT) AS others,
  CAST(coalesce(sum(operations) FILTER (outcome IS NULL), 0) AS BIGINT) AS open
FROM begun GROUP BY purgatory, kind, run, place, step

--- show lateness_steps
SELECT purgatory, kind, run, place, late_step AS step, CAST(sum(operations) AS BIGINT) AS expired
FROM begun WHERE late_step IS NOT NULL GROUP BY purgatory, kind, run, place, step

--- show limits_in_order
SELECT purgatory, kind, CASE WHEN timeout_ms >= 0 THEN timeout_ms / 1000 END AS timeout_s, operations,
  expired / nullif(completed + expired + cancelled, 0) AS expiry_rate
FROM limits ORDER BY purgatory, kind, timeout_ms

--- show timeouts_in_order
SELECT * FROM timeouts ORDER BY expired DESC, purgatory, kind

--- show survival_in_order
SELECT * FROM survival ORDER BY purgatory, kind, timeout_s

--- show account
SELECT * FROM reconciliation ORDER BY place, reason
