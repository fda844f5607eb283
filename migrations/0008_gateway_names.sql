-- Starts of gateways that another one came after under the same name. One that
-- asks again all the same runs beside it.
CREATE TABLE limit_rivals (
    replica text NOT NULL,
    boot_id text NOT NULL,
    seen_at timestamptz NOT NULL,
    -- When it was known last to run beside another one.
    beside_at timestamptz,
    PRIMARY KEY (replica, boot_id)
);

-- The starts that share limits and budgets: of each name the last one, and those
-- that run beside it. How lately one must have been seen is for whoever asks to
-- say.
CREATE VIEW limit_starts AS
SELECT replica, boot_id, seen_at FROM limit_replicas
UNION ALL
SELECT v.replica, v.boot_id, v.seen_at
  FROM limit_rivals AS v JOIN limit_replicas AS r ON r.replica = v.replica AND r.boot_id <> v.boot_id
 WHERE v.beside_at >= now() - interval '30 seconds';
